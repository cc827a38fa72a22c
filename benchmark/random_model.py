# SPDX-License-Identifier: Apache-2.0
"""Model folders with random weights in well-known shapes, made once and kept in a cache folder."""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmark.gpt_oss_shapes import GPT_OSS_SHAPES
from benchmark.hybrid_shapes import HYBRID_SHAPES
from benchmark.mla_shapes import MLA_SHAPES

_COMMON = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3-8b": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "qwen3-32b": {
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "llama-70b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "tiny": {  # to try a benchmark where there is no time
        "vocab_size": 2048,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
    "small": {
        "vocab_size": 32000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    **GPT_OSS_SHAPES,
    **HYBRID_SHAPES,
    **MLA_SHAPES,
}


def model_folder(shape: str) -> pathlib.Path:
    """The folder of a shape of SHAPES; bfloat16 weights, the same ones every time.

    Raises ValueError for shapes of gpt-oss, of which there is only config_folder.
    """
    if shape in GPT_OSS_SHAPES:
        raise ValueError(f"{shape}: no file is made of MXFP4; use a benchmark of GPUs")
    folder = cache_folder() / shape
    if not (folder / "config.json").exists():
        partial = cache_folder() / f".{shape}.{os.getpid()}"
        partial.mkdir(parents=True)
        config = {**_COMMON, **SHAPES[shape]}
        if shape in HYBRID_SHAPES or shape in MLA_SHAPES:
            _save_transformers(config, partial)
        else:
            save_file(dict(_weights(config)), partial / "model.safetensors", {"format": "pt"})
            (partial / "config.json").write_text(json.dumps(config, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


def config_folder(shape: str) -> pathlib.Path:
    """A folder with the config of a shape and no weights, for --load-format dummy."""
    folder = cache_folder() / f"{shape}-config"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".config.{os.getpid()}"
    long = {"max_position_embeddings": 40960}
    partial.write_text(json.dumps({**_COMMON, **SHAPES[shape], **long}, indent=1))
    partial.rename(folder / "config.json")
    return folder


def cache_folder() -> pathlib.Path:
    """Return the folder in which models and peers are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "rtp_llm" / "benchmark"


# int8 weights carry a float32 scale for every 64, fp8 ones for every 128 x 128.
_WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0 + 4 / 64, "fp8": 1.0 + 4 / 128**2}
_OUTPUT_BYTES = {**_WEIGHT_BYTES, "fp8": 2.0}
_CACHE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 4, "fp8": 2}


def step_bytes(shape: str, kind: str, batch: int, context: int, drafts: int = 0) -> float:
    """Bytes that a decoding step must read: all matrices once, keys and values of every sequence;
    of linear attention the float32 states, which it also writes.

    Of experts those that tokens go to when every choice is as likely as any other; ``drafts`` of
    each sequence are verified with its token.
    The embedding counts as the output layer that it is tied to; its look-up reads next to nothing.
    """
    sizes = SHAPES[shape]
    cache = batch * context * _full_layers(sizes) * _cache_elements(sizes)
    weights = _layer_weights(shape, _experts_read(sizes, batch * (1 + drafts)))
    weights = weights * _WEIGHT_BYTES[kind] + _output_weights(shape) * _OUTPUT_BYTES[kind]
    return weights + cache * _CACHE_BYTES[kind] + 2 * batch * state_bytes(shape)


def draft_bytes(shape: str, batch: int, context: int, drafts: int) -> float:
    """Bytes that a layer of multi-token prediction must read for ``drafts`` of each sequence, in
    bfloat16: once for all tokens of the step before, then for one of each sequence."""
    sizes = SHAPES[shape]
    hidden = sizes["hidden_size"]
    fixed = hidden * (2 * hidden + _full_mixer(sizes)) + _output_weights(shape)
    cache = batch * context * _cache_elements(sizes)
    rows = [batch * (1 + drafts), *[batch] * (drafts - 1)]
    inner = sum(_feed_forward(sizes, _experts_hit(sizes, count)) for count in rows)
    return 2 * (drafts * (fixed + cache) + hidden * inner)


def state_bytes(shape: str) -> float:
    """Bytes of one sequence's states of linear attention: the matrices in float32, and the last
    inputs of the convolutions in bfloat16."""
    sizes = SHAPES[shape]
    if not (layers := _linear_layers(sizes)):
        return 0.0
    keys, values = _linear_sizes(sizes)
    inputs = (sizes["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return layers * (4 * values * sizes["linear_key_head_dim"] + 2 * inputs)


def cache_bytes(shape: str, tokens: float) -> float:
    """Bytes of the keys and values of so many tokens in bfloat16."""
    sizes = SHAPES[shape]
    return tokens * _full_layers(sizes) * _cache_elements(sizes) * _CACHE_BYTES["bfloat16"]


def weight_bytes(shape: str, tokens: float = math.inf) -> float:
    """Bytes of all matrices that a step of so many tokens reads, in bfloat16; of experts those that
    evenly random choices hit."""
    weights = _layer_weights(shape, _experts_read(SHAPES[shape], tokens))
    return (weights + _output_weights(shape)) * _WEIGHT_BYTES["bfloat16"]


def step_operations(shape: str, batch: int) -> float:
    """Floating-point operations of the matrix products of a decoding step."""
    return 2.0 * batch * (_active_weights(shape) + _output_weights(shape))


def prompt_operations(shape: str, length: int) -> float:
    """Floating-point operations of a prompt: layers, causal attention, one row of logits."""
    return layer_operations(shape, length) + 2.0 * _output_weights(shape)


def layer_operations(shape: str, length: int) -> float:
    """Floating-point operations of a prompt's layers, with causal attention."""
    sizes = SHAPES[shape]
    heads = _full_layers(sizes) * sizes["num_attention_heads"]
    return 2.0 * length * _active_weights(shape) + length**2 * heads * sum(_head_sizes(sizes))


def _active_weights(shape: str) -> float:
    """Number of weights of all layers that one token is multiplied by."""
    return _layer_weights(shape, SHAPES[shape].get("num_experts_per_tok", 0))


def experts_of(sizes: dict[str, Any]) -> int:
    """Routed experts per layer; 0 for a dense model."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    return int(next((sizes[name] for name in names if name in sizes), 0))


def _experts_hit(sizes: dict[str, Any], tokens: float) -> float:
    experts = experts_of(sizes)
    missed = (1 - sizes["num_experts_per_tok"] / experts) ** tokens if experts else 1.0
    return experts * (1 - missed)


def _experts_read(sizes: dict[str, Any], tokens: float) -> float:
    """The experts that are hit; of MXFP4, with 4.25 bits a weight, as many as have their bytes in
    bfloat16."""
    share = 4.25 / 16 if "quantization_config" in sizes else 1.0
    return _experts_hit(sizes, tokens) * share


def _layer_weights(shape: str, experts: float) -> float:
    """Weights of all layers, of so many experts of each."""
    sizes = SHAPES[shape]
    mixers = _full_layers(sizes) * _full_mixer(sizes)
    if linear := _linear_layers(sizes):
        keys, values = _linear_sizes(sizes)
        mixers += linear * (2 * keys + 3 * values + 2 * sizes["linear_num_value_heads"])
    dense = sizes.get("first_k_dense_replace", 0)
    inner = (sizes["num_hidden_layers"] - dense) * _feed_forward(sizes, experts)
    inner += dense * 3 * sizes["intermediate_size"]
    return float(sizes["hidden_size"] * (mixers + inner))


def _full_mixer(sizes: dict[str, Any]) -> float:
    """Rows of a layer of full attention; the output of hybrids has a gate."""
    if latent := sizes.get("kv_lora_rank"):
        heads, (key, value) = sizes["num_attention_heads"], _head_sizes(sizes)
        queries = sizes["q_lora_rank"]
        inner = queries * key + latent * (sizes["qk_nope_head_dim"] + value)
        outer = queries + _cache_elements(sizes) + heads * value
        return float(outer + heads * inner / sizes["hidden_size"])
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    return (3 if _linear_layers(sizes) else 2) * queries + _cache_elements(sizes)


def _feed_forward(sizes: dict[str, Any], experts: float) -> float:
    """Rows of a layer's feed-forward part, of so many experts."""
    if gates := experts_of(sizes):
        expert = 3 * sizes.get("moe_intermediate_size", sizes["intermediate_size"])
        shared = 3 * sizes.get("shared_expert_intermediate_size", 0)
        return float(gates + shared + (experts + sizes.get("n_shared_experts", 0)) * expert)
    return float(3 * sizes["intermediate_size"])


def _head_sizes(sizes: dict[str, Any]) -> tuple[int, int]:
    """Return the number of elements of a head's key and of its value."""
    if "kv_lora_rank" in sizes:
        key = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
        return int(key), int(sizes["v_head_dim"])
    return int(sizes["head_dim"]), int(sizes["head_dim"])


def _cache_elements(sizes: dict[str, Any]) -> int:
    """Of the keys and values of one token in one layer, or of its latent."""
    if latent := sizes.get("kv_lora_rank"):
        return int(latent + sizes["qk_rope_head_dim"])
    return int(2 * sizes["num_key_value_heads"] * sizes["head_dim"])


def _full_layers(sizes: dict[str, Any]) -> int:
    return int(sizes["num_hidden_layers"] // sizes.get("full_attention_interval", 1))


def _linear_layers(sizes: dict[str, Any]) -> int:
    return int(sizes["num_hidden_layers"] - _full_layers(sizes))


def _linear_sizes(sizes: dict[str, Any]) -> tuple[int, int]:
    """Elements of a token's keys and of its values."""
    keys = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    values = sizes["linear_num_value_heads"] * sizes["linear_value_head_dim"]
    return keys, values


def _output_weights(shape: str) -> int:
    return SHAPES[shape]["vocab_size"] * SHAPES[shape]["hidden_size"]


def _save_transformers(config: dict[str, Any], folder: pathlib.Path) -> None:
    """A model as transformers initialises it."""
    import transformers

    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def _weights(config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return (0.02 * torch.randn(rows, columns, generator=generator)).bfloat16()

    def ones(size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    hidden, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", matrix(config["vocab_size"], hidden)
    yield "model.norm.weight", ones(hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", ones(hidden)
        yield prefix + "post_attention_layernorm.weight", ones(hidden)
        yield prefix + "self_attn.q_proj.weight", matrix(heads, hidden)
        yield prefix + "self_attn.k_proj.weight", matrix(kv_heads, hidden)
        yield prefix + "self_attn.v_proj.weight", matrix(kv_heads, hidden)
        yield prefix + "self_attn.o_proj.weight", matrix(hidden, heads)
        yield prefix + "self_attn.q_norm.weight", ones(head)
        yield prefix + "self_attn.k_norm.weight", ones(head)
        yield prefix + "mlp.gate_proj.weight", matrix(inner, hidden)
        yield prefix + "mlp.up_proj.weight", matrix(inner, hidden)
        yield prefix + "mlp.down_proj.weight", matrix(hidden, inner)

"""Model folders with random weights in well-known shapes, made once and kept in a cache folder."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

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
    "tiny-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 2048,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
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
}


def model_folder(shape: str) -> pathlib.Path:
    """The folder of a shape of SHAPES; bfloat16 weights, the same ones every time."""
    folder = cache_folder() / shape
    if not (folder / "config.json").exists():
        partial = cache_folder() / f".{shape}.{os.getpid()}"
        partial.mkdir(parents=True)
        config = {**_COMMON, **SHAPES[shape]}
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
    """Where models and peers are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "rtp_llm" / "benchmark"


# int8 weights carry a float32 scale for every 64, fp8 ones for every 128 x 128.
_WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0 + 4 / 64, "fp8": 1.0 + 4 / 128**2}
_OUTPUT_BYTES = {**_WEIGHT_BYTES, "fp8": 2.0}
_CACHE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 4, "fp8": 2}


def step_bytes(shape: str, kind: str, batch: int, context: int) -> float:
    """Bytes that a decoding step must read: all matrices once, keys and values of every sequence.

    Of experts those that tokens go to when every choice is as likely as any other.
    The embedding counts as the output layer that it is tied to; its look-up reads next to nothing.
    """
    sizes = SHAPES[shape]
    pairs = 2 * sizes["num_key_value_heads"] * sizes["head_dim"]
    cache = batch * context * sizes["num_hidden_layers"] * pairs
    weights = _layer_weights(shape, _experts_hit(sizes, batch)) * _WEIGHT_BYTES[kind]
    weights += _output_weights(shape) * _OUTPUT_BYTES[kind]
    return weights + cache * _CACHE_BYTES[kind]


def cache_bytes(shape: str, tokens: float) -> float:
    """Bytes of the keys and values of so many tokens in bfloat16."""
    sizes = SHAPES[shape]
    pairs = 2 * sizes["num_key_value_heads"] * sizes["head_dim"]
    return tokens * sizes["num_hidden_layers"] * pairs * _CACHE_BYTES["bfloat16"]


def weight_bytes(shape: str) -> float:
    """Bytes of all matrices that a step reads, in bfloat16."""
    experts = SHAPES[shape].get("num_experts", 0)
    return (_layer_weights(shape, experts) + _output_weights(shape)) * _WEIGHT_BYTES["bfloat16"]


def step_operations(shape: str, batch: int) -> float:
    """Floating-point operations of the matrix products of a decoding step."""
    return 2.0 * batch * (_active_weights(shape) + _output_weights(shape))


def prompt_operations(shape: str, length: int) -> float:
    """Floating-point operations of a prompt: layers, causal attention, one row of logits."""
    sizes = SHAPES[shape]
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    attention = 2.0 * length**2 * queries * sizes["num_hidden_layers"]
    return 2.0 * (length * _active_weights(shape) + _output_weights(shape)) + attention


def _active_weights(shape: str) -> float:
    """Weights of all layers that one token is multiplied with."""
    return _layer_weights(shape, SHAPES[shape].get("num_experts_per_tok", 0))


def _experts_hit(sizes: dict[str, Any], tokens: int) -> float:
    experts = sizes.get("num_experts", 0)
    missed = (1 - sizes["num_experts_per_tok"] / experts) ** tokens if experts else 1.0
    return experts * (1 - missed)


def _layer_weights(shape: str, experts: float) -> float:
    """Weights of all layers, of so many experts of each."""
    sizes = SHAPES[shape]
    hidden, head = sizes["hidden_size"], sizes["head_dim"]
    queries, pairs = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head * 2
    inner: float = 3 * sizes["intermediate_size"]
    if gates := sizes.get("num_experts"):
        inner = gates + experts * 3 * sizes["moe_intermediate_size"]
    return sizes["num_hidden_layers"] * hidden * (2 * queries + pairs + inner)


def _output_weights(shape: str) -> int:
    return SHAPES[shape]["vocab_size"] * SHAPES[shape]["hidden_size"]


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

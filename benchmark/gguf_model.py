# SPDX-License-Identifier: Apache-2.0
"""Writes the weights of a Hugging Face Qwen3 folder as GGUF: llama.cpp runs the same model."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import gguf
import numpy as np
import torch
from safetensors import safe_open

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
QUANTIZATIONS = {
    "float32": gguf.GGMLQuantizationType.F32,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
}


def write_gguf(folder: pathlib.Path, output: pathlib.Path, kind: str) -> None:
    """Convert `folder` (Qwen3, safetensors) to `output`; `kind` is a key of `QUANTIZATIONS`.

    Vectors stay float32, as llama.cpp wants them. The words are made up: only ids are used.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(output, "qwen3")
    _write_shape(writer, config)
    _write_vocabulary(writer, config["vocab_size"])
    for name, tensor in _tensors(folder):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        _write_tensor(writer, _gguf_name(name), tensor, QUANTIZATIONS[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * size)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def _tensors(folder: pathlib.Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is not a mapping
                yield name, file.get_tensor(name)


def _gguf_name(name: str) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kind: gguf.GGMLQuantizationType
) -> None:
    values = tensor.float().numpy()
    if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

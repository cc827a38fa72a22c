# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 of a GGUF file in transformers, with weights as floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rtp_llm.gguf import GgufModel, GgufTensor, open_model
from rtp_llm.ops.gguf.blocks import dequantize
from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def gemma_reference(file: Path) -> Any:
    """transformers' Gemma3ForCausalLM with the weights of the file, in float32."""
    found = open_model(file)
    state = {_name(name): _floats(tensor) for name, tensor in found.tensors.items()}
    loaded: Any = Gemma3ForCausalLM.from_pretrained(
        None, config=_config(found), state_dict=state, dtype=torch.float32, output_loading_info=True
    )
    model, report = loaded
    assert not report["unexpected_keys"], report
    assert report["missing_keys"] <= {"lm_head.weight"}, report
    return model.eval()


def _config(found: GgufModel) -> Gemma3TextConfig:
    def number(key: str) -> int:
        value = found.metadata.integer(found.metadata.of_model(key))
        assert value is not None, key
        return value

    layers, head = number("block_count"), number("attention.key_length")
    kinds = ["full_attention" if (n + 1) % 6 == 0 else "sliding_attention" for n in range(layers)]
    return Gemma3TextConfig(
        vocab_size=found.tensors["token_embd.weight"].shape[0],
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        head_dim=head,
        query_pre_attn_scalar=head,
        sliding_window=number("attention.sliding_window"),
        layer_types=kinds,
        rms_norm_eps=1e-6,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        tie_word_embeddings=True,
    )


def _name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] != "blk":
        return f"model.{_OUTSIDE[parts[0]]}.weight"
    return f"model.layers.{parts[1]}.{_PARTS[parts[2]]}.weight"


def _floats(tensor: GgufTensor) -> torch.Tensor:
    """The weights; norms of Gemma are stored with the 1 that transformers adds."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        content = torch.frombuffer(bytearray(file.read(tensor.size)), dtype=torch.uint8)
    *rows, _ = tensor.shape
    if tensor.type.name == "F32":
        floats = content.view(torch.float32).view(tensor.shape)
    else:
        blocks = content.view(*rows, -1, tensor.type.block_bytes)
        floats = dequantize(tensor.type.name, blocks).flatten(-2)
    return floats - 1 if tensor.name.endswith("norm.weight") else floats

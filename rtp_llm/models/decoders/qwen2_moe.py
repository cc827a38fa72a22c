# SPDX-License-Identifier: Apache-2.0
"""Qwen2 with mixtures of experts (Qwen1.5-MoE among them)."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.moe import gated_shared_experts, sparse_layers
from rtp_llm.models.raw_config import RawConfig


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2's attention; routed experts plus a shared expert gated by a sigmoid."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "rms_norm_eps": 1e-6,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 4096,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return Features(
            qkv_bias=raw.flag("qkv_bias"),
            layer_windows=_windows(raw),
            moe=gated_shared_experts(raw, renormalize=raw.flag("norm_topk_prob")),
            moe_layers=sparse_layers(raw),
        )


def _windows(raw: RawConfig) -> tuple[int, ...]:
    """Window per layer: from `layer_types`, else every other one below `max_window_layers`."""
    layers = raw.integer("num_hidden_layers")
    if not raw.flag("use_sliding_window") or not raw.get("sliding_window"):
        return (0,) * layers
    window = raw.integer("sliding_window")
    if kinds := raw.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    first_full = raw.count("max_window_layers")
    return tuple(window if layer % 2 == 0 and layer < first_full else 0 for layer in range(layers))

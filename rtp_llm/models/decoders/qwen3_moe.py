# SPDX-License-Identifier: Apache-2.0
"""Qwen3 with mixtures of experts."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers.moe import MoeConfig
from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.moe import expert_size, num_experts, sparse_layers
from rtp_llm.models.raw_config import RawConfig


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3's attention; softmax over all experts, with optionally renormalised top-k weights."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        moe = MoeConfig(
            hidden_size=raw.integer("hidden_size"),
            num_experts=num_experts(raw),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=expert_size(raw),
            renormalize=raw.flag("norm_topk_prob"),
        )
        windowed = raw.flag("use_sliding_window") and raw.get("sliding_window") is not None
        window = raw.integer("sliding_window") if windowed else 0
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
            layer_windows=(window,) * raw.integer("num_hidden_layers"),
            moe=moe,
            moe_layers=sparse_layers(raw),
        )

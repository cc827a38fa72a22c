# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: attention with sinks, every other layer in a window; experts with biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.activation import SWIGLU_OAI
from rtp_llm.layers.moe import ExpertNames, MoeConfig
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.moe import num_experts
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import rope_settings

_NAMES = ExpertNames(gate="router", gate_up_proj="gate_up_proj")
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOssForCausalLM(DecoderForCausalLM):
    """The router takes the softmax of the chosen logits, which is that of all, renormalised."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "attention_bias": True,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        if rope_settings(raw.values):
            return super().read_config(raw)
        return super().read_config(replace(raw, values={**raw.values, "rope_parameters": _ROPE}))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        moe = MoeConfig(
            hidden_size=raw.integer("hidden_size"),
            num_experts=num_experts(raw),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("intermediate_size"),
            router_bias=True,
            expert_bias=True,
            activation=SWIGLU_OAI,
            alpha=raw.number("swiglu_alpha"),
            limit=raw.number("swiglu_limit"),
            names=_NAMES,
        )
        return Features(
            qkv_bias=bias, output_bias=bias, sinks=True, layer_windows=_windows(raw), moe=moe
        )


def _windows(raw: RawConfig) -> tuple[int, ...]:
    """The window of each layer; without `layer_types` every second layer is full, from layer 1."""
    window = 0 if raw.get("sliding_window") is None else raw.integer("sliding_window")
    kinds = raw.get("layer_types")
    if kinds is None:
        return tuple(0 if i % 2 else window for i in range(raw.integer("num_hidden_layers")))
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)

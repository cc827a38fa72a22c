# SPDX-License-Identifier: Apache-2.0
"""Mixtral."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers.moe import ExpertNames, MoeConfig
from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.moe import num_experts
from rtp_llm.models.raw_config import RawConfig

_NAMES = ExpertNames(block="block_sparse_moe", gate_proj="w1", up_proj="w3", down_proj="w2")


class MixtralForCausalLM(DecoderForCausalLM):
    """Mistral's attention; every layer is a mixture, and top-k weights are renormalised."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        moe = MoeConfig(
            hidden_size=raw.integer("hidden_size"),
            num_experts=num_experts(raw),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("intermediate_size"),
            names=_NAMES,
        )
        window = raw.integer("sliding_window") if raw.get("sliding_window") else 0
        return Features(layer_windows=(window,) * raw.integer("num_hidden_layers"), moe=moe)

# SPDX-License-Identifier: Apache-2.0
"""GLM-4-0414: norms after attention and feed-forward too, half of each head rotates in pairs."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.norm_slots import GLM4_NORMS
from rtp_llm.models.raw_config import RawConfig


class Glm4ForCausalLM(DecoderForCausalLM):
    """`attention_bias` is for Q, K and V alone; gate and up are one tensor in checkpoints."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "attention_bias": True,
        "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return Features(
            qkv_bias=raw.flag("attention_bias"),
            norms=GLM4_NORMS,
            rope_in_pairs=True,
            fused_gate_up=True,
        )

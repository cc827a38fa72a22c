# SPDX-License-Identifier: Apache-2.0
"""Seed-OSS: a Llama with biases of Q, K and V."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig


class SeedOssForCausalLM(DecoderForCausalLM):
    """`attention_bias` is for Q, K and V alone; the output's is `attention_out_bias`."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "attention_bias": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 524288,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return Features(
            qkv_bias=raw.flag("attention_bias"),
            output_bias=raw.flag("attention_out_bias"),
            mlp_bias=raw.flag("mlp_bias"),
        )

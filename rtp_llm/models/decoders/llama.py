# SPDX-License-Identifier: Apache-2.0
"""Llama 2 and 3.x."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig


class LlamaForCausalLM(DecoderForCausalLM):
    """The plain decoder: no norms on Q and K, biases only where config.json asks for them."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        return Features(qkv_bias=bias, output_bias=bias, mlp_bias=raw.flag("mlp_bias"))

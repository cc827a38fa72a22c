# SPDX-License-Identifier: Apache-2.0
"""Qwen3, dense."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.decoders.qwen2 import Qwen2ForCausalLM, layer_windows
from rtp_llm.models.raw_config import RawConfig


class Qwen3ForCausalLM(DecoderForCausalLM):
    """RMS norms on each head of Q and K; heads of 128 unless config.json says otherwise."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **Qwen2ForCausalLM.CONFIG_DEFAULTS,
        "head_dim": 128,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        return Features(
            qkv_bias=bias, output_bias=bias, qk_norm=True, layer_windows=layer_windows(raw)
        )

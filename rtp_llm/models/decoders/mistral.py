# SPDX-License-Identifier: Apache-2.0
"""Mistral: a Llama with an optional sliding window in every layer."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig


class MistralForCausalLM(DecoderForCausalLM):
    """No biases; `sliding_window` (null = none) applies to all layers."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        window = 0 if raw.get("sliding_window") is None else raw.integer("sliding_window")
        return Features(layer_windows=(window,) * raw.integer("num_hidden_layers"))

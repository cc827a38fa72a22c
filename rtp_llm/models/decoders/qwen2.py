# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Biases on Q, K and V; upper layers may see only a sliding window."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return Features(qkv_bias=True, layer_windows=layer_windows(raw))


def layer_windows(raw: RawConfig) -> tuple[int, ...]:
    """Window per layer: from `layer_types`, else from layer `max_window_layers` on; or none."""
    layers = raw.integer("num_hidden_layers")
    if not raw.flag("use_sliding_window") or raw.get("sliding_window") is None:
        return (0,) * layers
    window = raw.integer("sliding_window")
    if kinds := raw.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    first = raw.count("max_window_layers")
    return tuple(window if layer >= first else 0 for layer in range(layers))

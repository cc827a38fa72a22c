# SPDX-License-Identifier: Apache-2.0
"""SmolLM3: a Llama whose every fourth layer does not rotate."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.layer_types import NEAR
from rtp_llm.models.raw_config import RawConfig


class SmolLM3ForCausalLM(DecoderForCausalLM):
    """`no_rope_layers` has a 1 for layers that do rotate."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2000000.0,
        "tie_word_embeddings": True,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias, still = raw.flag("attention_bias"), _layers_without_rope(raw)
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=raw.flag("mlp_bias"),
            layer_windows=_windows(raw, still),
            no_rope_layers=still,
        )


def _layers_without_rope(raw: RawConfig) -> frozenset[int]:
    layers, listed = range(raw.integer("num_hidden_layers")), raw.get("no_rope_layers")
    if listed is None:
        every = raw.integer("no_rope_layer_interval")
        return frozenset(layer for layer in layers if (layer + 1) % every == 0)
    if len(listed) < len(layers):
        raise raw.error("no_rope_layers", len(listed), f"a list of {len(layers)} entries")
    return frozenset(layer for layer in layers if not listed[layer])


def _windows(raw: RawConfig, still: frozenset[int]) -> tuple[int, ...]:
    layers = raw.integer("num_hidden_layers")
    if not raw.flag("use_sliding_window") or raw.get("sliding_window") is None:
        return (0,) * layers
    window = raw.integer("sliding_window")
    if kinds := raw.get("layer_types"):
        return tuple(window if kind == NEAR else 0 for kind in kinds)
    return tuple(window if layer in still else 0 for layer in range(layers))

# SPDX-License-Identifier: Apache-2.0
"""OLMo 2 and 3: norms after attention and feed-forward only, and over whole rows of Q and K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.layer_types import FULL, NEAR, layer_types
from rtp_llm.models.norm_slots import POST_NORMS
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import refuse, rope_style
from rtp_llm.ops.rope.rotary_table import RopeConfig


class Olmo2ForCausalLM(DecoderForCausalLM):
    """Every layer has full attention."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "eos_token_id": 50279,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        return Features(qkv_bias=bias, output_bias=bias, norms=POST_NORMS, wide_qk_norm=True)


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """Three of four layers have a window; positions are stretched in the others alone."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **Olmo2ForCausalLM.CONFIG_DEFAULTS,
        "rope_theta": 500000.0,
        "sliding_window": 4096,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        return super().read_config(_with_rope(raw, FULL))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        window = raw.integer("sliding_window") if raw.get("sliding_window") else 0
        kinds = layer_types(raw, 4, full_last=True)
        return replace(
            super().features(raw),
            layer_windows=tuple(window if kind == NEAR else 0 for kind in kinds),
            local_rope=_plain_rope(raw),
        )


def _with_rope(raw: RawConfig, kind: str) -> RawConfig:
    """`raw` with the rope settings of one type of layers, if it has them by type."""
    by_type = raw.get("rope_parameters") or {}
    if kind not in by_type and NEAR not in by_type:
        return raw
    near = (by_type.get(NEAR) or {}) if isinstance(by_type.get(NEAR) or {}, dict) else {}
    values = {
        **raw.values,
        "rope_parameters": by_type.get(kind) or {},
        "sliding_rope": near,
    }
    return replace(raw, values=values)


def _plain_rope(raw: RawConfig) -> RopeConfig:
    """The rotation of layers with a window, which is never scaled."""
    settings = raw.get("sliding_rope") or {}
    if rope_style({"rope_parameters": settings}) != "default":
        raise refuse("other rope type", f"config.json: rope settings of {NEAR}")
    hidden, heads = raw.integer("hidden_size"), raw.integer("num_attention_heads")
    size = raw.integer("head_dim", hidden // heads)
    theta = settings.get("rope_theta") or raw.number("rope_theta")
    return RopeConfig("default", size, float(theta))

# SPDX-License-Identifier: Apache-2.0
"""Converts the rope keys of config.json, in either of their two forms, to a RopeConfig."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rtp_llm.layers.rotary import AXES, MropeConfig
from rtp_llm.model_folder import finite
from rtp_llm.models.raw_config import ModelConfigError, RawConfig
from rtp_llm.models.refusals import rope_settings, rope_style
from rtp_llm.ops.rope.rotary_table import RopeConfig

_DEFAULT_THETA = 10000.0
_SMALLEST_DYNAMIC = 4  # the base grows by a power of dim / (dim - 2)


def read_rope(raw: RawConfig, head_dim: int) -> RopeConfig:
    """The rotary embedding of a model whose whole head rotates.

    Follows transformers: `rope_scaling` along with `rope_theta`, or `rope_parameters`. Raises
    ModelConfigError naming the missing key.
    """
    settings = _Settings(raw)
    style = rope_style(raw.values)
    outer_theta = raw.get("rope_theta")
    theta = settings.number("rope_theta", _DEFAULT_THETA if outer_theta is None else outer_theta)
    length = raw.integer("max_position_embeddings")
    if style in ("llama3", "yarn", "longrope"):
        inner = settings.number("original_max_position_embeddings", length)
        length = raw.integer("original_max_position_embeddings", int(inner))
    if style == "dynamic" and head_dim < _SMALLEST_DYNAMIC:
        raise raw.error("head_dim", head_dim, f"at least {_SMALLEST_DYNAMIC} for dynamic rope")
    if style == "default":
        return RopeConfig(style=style, rotary_dim=head_dim, theta=theta)
    # Stretched configs may omit the factor, which then is the ratio of the two lengths.
    ratio = raw.integer("max_position_embeddings") / length
    factor = settings.number("factor", ratio if style in ("yarn", "longrope") else None)
    own = _OWN.get(style, _nothing)(settings, factor, length)
    return RopeConfig(
        style=style,
        rotary_dim=head_dim,
        theta=theta,
        factor=factor,
        max_position=length,
        **own,
    )


def read_mrope(raw: RawConfig, rotary_dim: int) -> MropeConfig:
    """The channels that turn by the position on each axis, of a model with M-RoPE.

    Raises ModelConfigError naming the key.
    """
    settings = _Settings(raw)
    sections: Any = settings.values.get("mrope_section")
    pairs = rotary_dim // 2
    expected = f"three positive numbers that add up to {pairs}, half of the channels that rotate"
    if not isinstance(sections, list) or not all(type(each) is int for each in sections):
        raise settings.error("mrope_section", sections, expected)
    if len(sections) != len(AXES) or min(sections) < 1 or sum(sections) != pairs:
        raise settings.error("mrope_section", sections, expected)
    time, height, width = sections
    interleaved = settings.values.get("mrope_interleaved", False) is True
    config = MropeConfig((time, height, width), interleaved)
    axes = config.axes()
    if [axes.count(axis) for axis in AXES] != sections:
        raise settings.error("mrope_section", sections, "such that every third pair is enough")
    return config


class _Settings:
    """The rope dictionary of one config.json with errors that name its keys."""

    def __init__(self, raw: RawConfig) -> None:
        self._raw = raw
        self.values: Mapping[str, Any] = rope_settings(raw.values)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        number = finite(value)
        if number is None or number <= 0:
            raise self.error(key, value, "a positive number")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.values.get(key)
        found = [finite(each) for each in value] if isinstance(value, list) else []
        if not found or any(each is None or each <= 0 for each in found):
            raise self.error(key, value, "a list of positive numbers")
        return tuple(each for each in found if each is not None)

    def error(self, key: str, value: Any, expected: str) -> ModelConfigError:
        return self._raw.error(f"the rope setting {key}", value, expected)


def _nothing(settings: _Settings, factor: float, length: int) -> dict[str, Any]:
    return {}


def _llama3(settings: _Settings, factor: float, length: int) -> dict[str, Any]:
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if high <= low:
        raise settings.error("high_freq_factor", high, f"greater than low_freq_factor ({low})")
    return {"low_freq_factor": low, "high_freq_factor": high}


def _yarn(settings: _Settings, factor: float, length: int) -> dict[str, Any]:
    return {
        "beta_fast": settings.number("beta_fast", 32.0),
        "beta_slow": settings.number("beta_slow", 1.0),
        "attention_factor": _yarn_attention_factor(settings, factor),
        "truncate": settings.values.get("truncate", True) is not False,
    }


def _longrope(settings: _Settings, factor: float, length: int) -> dict[str, Any]:
    if settings.values.get("attention_factor") is not None:
        scale = settings.number("attention_factor")
    else:
        if length < 2:
            raise settings.error("original_max_position_embeddings", length, "2 or more")
        scale = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    return {
        "attention_factor": scale,
        "divisors": settings.numbers("short_factor"),
        "long_divisors": settings.numbers("long_factor"),
    }


_OWN = {"llama3": _llama3, "yarn": _yarn, "longrope": _longrope}


def yarn_scale(factor: float, weight: float) -> float:
    """The attention scale for positions stretched by `factor`, as derived in the YaRN paper."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(settings: _Settings, factor: float) -> float:
    """The multiplier of cos and sin: given, or derived from the factor as in the paper."""
    given = settings.values.get("attention_factor")
    if given is not None:
        return settings.number("attention_factor")
    above, below = settings.values.get("mscale"), settings.values.get("mscale_all_dim")
    if above and below:
        return yarn_scale(factor, float(above)) / yarn_scale(factor, float(below))
    return yarn_scale(factor, 1.0)

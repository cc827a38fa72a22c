"""From the rope keys of config.json, in either of their two forms, to one RopeConfig."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import rope_settings, rope_style
from rtp_llm.ops.rotary_table import RopeConfig

_DEFAULT_THETA = 10000.0


def read_rope(raw: RawConfig, head_dim: int) -> RopeConfig:
    """The rotary embedding of a model whose whole head rotates.

    Meanings follow transformers: `rope_scaling` beside `rope_theta`, or `rope_parameters`. Raises
    ModelConfigError naming the key that is missing.
    """
    settings = _Settings(raw)
    style = rope_style(raw.values)
    theta = settings.number("rope_theta", raw.get("rope_theta") or _DEFAULT_THETA)
    length = raw.integer("max_position_embeddings")
    if style in ("llama3", "yarn"):
        outer = raw.get("original_max_position_embeddings")
        length = int(outer or settings.number("original_max_position_embeddings", length))
    if style == "default":
        return RopeConfig(style=style, rotary_dim=head_dim, theta=theta)
    # Yarn may leave the factor out and mean the ratio of the two lengths.
    implied = raw.integer("max_position_embeddings") / length if style == "yarn" else None
    factor = settings.number("factor", implied)
    own: dict[str, Any] = {"llama3": _llama3, "yarn": _yarn}.get(style, _nothing)(settings, factor)
    return RopeConfig(
        style=style,
        rotary_dim=head_dim,
        theta=theta,
        factor=factor,
        max_position=length,
        **own,
    )


class _Settings:
    """The rope dictionary of one config.json with errors that name its keys."""

    def __init__(self, raw: RawConfig) -> None:
        self._raw = raw
        self.values: Mapping[str, Any] = rope_settings(raw.values)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._raw.error(f"the rope setting {key}", value, "a positive number")
        return float(value)


def _nothing(settings: _Settings, factor: float) -> dict[str, Any]:
    return {}


def _llama3(settings: _Settings, factor: float) -> dict[str, Any]:
    return {
        "low_freq_factor": settings.number("low_freq_factor"),
        "high_freq_factor": settings.number("high_freq_factor"),
    }


def _yarn(settings: _Settings, factor: float) -> dict[str, Any]:
    return {
        "beta_fast": settings.number("beta_fast", 32.0),
        "beta_slow": settings.number("beta_slow", 1.0),
        "attention_factor": _yarn_attention_factor(settings, factor),
        "truncate": settings.values.get("truncate", True) is not False,
    }


def yarn_scale(factor: float, weight: float) -> float:
    """How much larger attention becomes where positions were stretched by `factor`, as the paper
    derives it."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(settings: _Settings, factor: float) -> float:
    """What cos and sin are multiplied by: given, or derived from the factor as the paper does."""
    given = settings.values.get("attention_factor")
    if given is not None:
        return settings.number("attention_factor")
    above, below = settings.values.get("mscale"), settings.values.get("mscale_all_dim")
    if above and below:
        return yarn_scale(factor, float(above)) / yarn_scale(factor, float(below))
    return yarn_scale(factor, 1.0)

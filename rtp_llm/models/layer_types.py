# SPDX-License-Identifier: Apache-2.0
"""Layers of two types, with a window and without, each with a rotation of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rtp_llm.layers import Layer, Rotary
from rtp_llm.model_folder import finite, shown
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import refuse
from rtp_llm.ops.rope.rotary_table import RopeConfig

FULL, NEAR = "full_attention", "sliding_attention"


class RotaryByType(Layer):
    """The rotations of layers without a window and of those with one."""

    def __init__(self, config: ModelConfig, num_positions: int, device: torch.device) -> None:
        super().__init__()
        assert config.local_rope is not None
        self.full = Rotary(config.rope, num_positions, device)
        self.near = Rotary(config.local_rope, num_positions, device)

    def cos_sin(self, window: int) -> Tensor | None:
        """The table of a layer; see Rotary."""
        return (self.near if window else self.full).cos_sin


def layer_types(raw: RawConfig, every: int, *, full_last: bool = False) -> list[str]:
    """The type of each layer: as listed, else of `every` layers the first (the last) is full."""
    count, listed = raw.integer("num_hidden_layers"), raw.get("layer_types")
    if listed is None:
        return [NEAR if (index + full_last) % every else FULL for index in range(count)]
    if len(listed) != count:
        expected = f"a list of {count} entries (num_hidden_layers)"
        raise raw.error("layer_types", len(listed), expected)
    return list(listed)


def rope_of_type(raw: RawConfig, kind: str, key: str, size: int) -> RopeConfig:
    """The rotation of `size` channels in layers of a type, as transformers 5 writes it, or the base
    under an older key. In that form rope_scaling is for full layers, and it may be linear."""
    own = (raw.get("rope_parameters") or {}).get(kind) or {}
    if not own and kind == FULL:
        own = raw.get("rope_scaling") or {}
    settings = own if isinstance(own, Mapping) else {}
    style = settings.get("rope_type") or settings.get("type") or "default"
    theta = finite(settings.get("rope_theta")) or raw.number(key)
    if style == "proportional":
        return _proportional(raw, settings, size, theta)
    if style == "default" and own == settings:
        return RopeConfig("default", size, theta)
    factor = finite(settings.get("factor"))
    if style != "linear" or factor is None or factor < 1:
        raise refuse("other rope type", f"config.json: rope settings of {kind} {shown(own)}")
    return RopeConfig("linear", size, theta, factor, raw.integer("max_position_embeddings"))


def _proportional(
    raw: RawConfig, settings: Mapping[str, Any], size: int, theta: float
) -> RopeConfig:
    found = {key: settings.get(key, 1.0) for key in ("partial_rotary_factor", "factor")}
    share, factor = (finite(value) for value in found.values())
    if share is None or not 0 < share <= 1 or factor is None or factor < 1:
        raise raw.error("a rope setting of full_attention", found, "at most 1, and at least 1")
    return RopeConfig("proportional", size, theta, factor, share=share)

# SPDX-License-Identifier: Apache-2.0
"""Reads the keys of config.json of layers of Mamba-2, which families name differently."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rtp_llm.layers.mamba2 import Mamba2Shape
from rtp_llm.models.raw_config import RawConfig

# Names of the two types of layers: transformers 5's, and the older ones.
_MAMBA, _ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")
_PIECE = 8  # elements of a head that kernels process at a time
_MAX_TAPS, _MAX_STATE = 4, 512  # what the kernels support


@dataclass(frozen=True)
class MambaKeys:
    """The keys of a family. `eps` is that of the norm after the scan.

    `expand`: what heads together are wide, in hidden sizes; "": only their own keys say it.
    """

    heads: str
    head_dim: str
    groups: str
    state: str
    kernel: str
    expand: str
    conv_bias: str
    proj_bias: str
    eps: str
    activation: str = "hidden_act"
    limits: str = "time_step_limit"


def mamba_layers(raw: RawConfig) -> tuple[bool, ...]:
    """Which layers are Mamba-2, from `layer_types` or, as older files name it,
    `layers_block_type`; by default all."""
    layers = raw.integer("num_hidden_layers")
    key = next((k for k in ("layer_types", "layers_block_type") if raw.get(k) is not None), "")
    if not key:
        return (True,) * layers
    kinds = raw.get(key)
    if len(kinds) != layers:
        raise raw.error(key, len(kinds), f"a list of {layers} entries (num_hidden_layers)")
    for kind in kinds:
        if kind not in (*_MAMBA, *_ATTENTION):
            raise raw.error(key, kind, f"{_MAMBA[1]} or {_ATTENTION[1]} in each entry")
    return tuple(kind in _MAMBA for kind in kinds)


def read_mamba2(raw: RawConfig, keys: MambaKeys) -> Mamba2Shape:
    """The sizes of the layers; ModelConfigError names a key that does not fit."""
    if raw.text(keys.activation) not in ("silu", "swish"):
        expected = "silu, which the convolution in front of the scan computes"
        raise raw.error(keys.activation, raw.get(keys.activation), expected)
    heads, groups = raw.integer(keys.heads), raw.integer(keys.groups)
    if heads % groups:
        raise raw.error(keys.heads, heads, f"a multiple of {keys.groups} ({groups})")
    taps, state = raw.integer(keys.kernel), raw.integer(keys.state)
    if taps > _MAX_TAPS:
        expected = f"at most {_MAX_TAPS}, which the kernels of the convolution take"
        raise raw.error(keys.kernel, taps, expected)
    if state > _MAX_STATE or state % _PIECE:
        raise raw.error(keys.state, state, f"a multiple of {_PIECE} up to {_MAX_STATE}")
    return Mamba2Shape(
        hidden_size=raw.integer("hidden_size"),
        num_heads=heads,
        head_dim=_head_dim(raw, keys, heads),
        num_groups=groups,
        state_size=state,
        kernel_size=taps,
        norm_eps=raw.number(keys.eps),
        conv_bias=raw.flag(keys.conv_bias),
        proj_bias=raw.flag(keys.proj_bias),
        dt_limits=_limits(raw, keys.limits),
    )


def _head_dim(raw: RawConfig, keys: MambaKeys, heads: int) -> int:
    if not keys.expand:
        return _pieces(raw, keys, raw.integer(keys.head_dim))
    inner = raw.integer(keys.expand) * raw.integer("hidden_size")
    if inner % heads:
        raise raw.error(keys.heads, heads, f"a divisor of the {inner} channels of {keys.expand}")
    auto = raw.get(keys.head_dim) == "auto"
    size = inner // heads if auto else raw.integer(keys.head_dim)
    if size * heads != inner:
        expected = f"{inner // heads}, which makes {heads} heads as wide as {keys.expand} says"
        raise raw.error(keys.head_dim, size, expected)
    return _pieces(raw, keys, size)


def _pieces(raw: RawConfig, keys: MambaKeys, size: int) -> int:
    if size % _PIECE:
        raise raw.error(keys.head_dim, size, f"a multiple of {_PIECE}, as the kernels take heads")
    return size


def _limits(raw: RawConfig, key: str) -> tuple[float, float]:
    """The bounds of a token's step; transformers 5 writes infinity as an object."""
    listed: Any = raw.get(key)
    if listed is None:
        return 0.0, math.inf
    values = [each.get("__float__") if isinstance(each, dict) else each for each in listed]
    numbers: list[Any] = [math.inf if each == "Infinity" else each for each in values]
    is_pair = len(numbers) == 2 and all(type(each) in (int, float) for each in numbers)
    if not is_pair or not 0 <= numbers[0] < numbers[1]:
        raise raw.error(key, listed, "two numbers from 0, the larger one last")
    return float(numbers[0]), float(numbers[1])

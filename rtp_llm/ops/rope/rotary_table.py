# SPDX-License-Identifier: Apache-2.0
"""Tables of cosines and sines for rotary embeddings, for every style that dense models use.

The arithmetic is float32 in the order that transformers uses, so that tables agree to the bit
(except for the dynamic styles, which differ in the last one). A row depends on nothing but the
configuration and its position; see `rope_table` for what that means for the dynamic styles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles.

    style: "none", "default", "linear" (positions divided by factor), "proportional" (the same, and
    only the first pairs of channels turn), "dynamic" (NTK: the base grows past max_position),
    "qwen_dynamic" (the same in powers of two), "yarn", "llama3" or "longrope" (angles are divided
    by `divisors`, or by `long_divisors` in tables of more than max_position rows).
    GLM's partial rotation is "default" with the rotary_dim that turns, and is_neox=False in
    `rope_kv_write`: styles do not decide which channels form a pair.
    """

    style: str
    rotary_dim: int  # channels that turn; even
    theta: float = 10000.0  # the base
    factor: float = 1.0
    max_position: int = 0  # the trained length, which scaling is relative to
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # cosines and sines are multiplied by it
    extrapolation_factor: float = 1.0  # yarn
    truncate: bool = True  # yarn: the corrected range is rounded outwards
    share: float = 1.0  # proportional: of the pairs that turn
    divisors: tuple[float, ...] = ()  # of the angle of each pair, as GGUF files hold them
    long_divisors: tuple[float, ...] = ()  # longrope

    def __post_init__(self) -> None:
        if self.style not in ROPE_STYLES:
            raise ValueError(f"rope style is {self.style!r}; expected one of {ROPE_STYLES}")
        if self.rotary_dim < 0 or self.rotary_dim % 2:
            raise ValueError(f"rotary_dim is {self.rotary_dim}; expected an even number")
        if self.style in _RELATIVE and self.max_position <= 0:
            raise ValueError(
                f"max_position is {self.max_position}; {self.style!r} needs the trained length"
            )
        for divisors in (self.divisors, self.long_divisors):
            if divisors and len(divisors) != self.rotary_dim // 2:
                raise ValueError(f"{len(divisors)} divisors for {self.rotary_dim} channels")


def rope_table(config: RopeConfig, num_positions: int, device: torch.device | str) -> Tensor:
    """Float32 [num_positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines.

    For the dynamic styles row p has the base of a sequence of p + 1 tokens, so that neither
    chunks, nor batches, nor cached prefixes can change a token. While decoding past max_position
    this is what transformers computes; a prompt that is longer than max_position gets there one
    base for all of its tokens. The table is shared while somebody holds it: do not write to it.
    """
    if config.style == "none":
        raise ValueError("rope style 'none' has no table; pass None for cos_sin")
    if num_positions <= 0:
        raise ValueError(f"num_positions is {num_positions}; expected at least 1")
    key = (config, num_positions, str(torch.device(device)))
    table = _tables.get(key)
    if table is None:
        table = _tables[key] = _build(config, num_positions, torch.device(device))
    return table


_Key = tuple[RopeConfig, int, str]
_tables: WeakValueDictionary[_Key, Tensor] = WeakValueDictionary()


def _build(config: RopeConfig, num_positions: int, device: torch.device) -> Tensor:
    positions = torch.arange(num_positions, device=device).unsqueeze(1)
    frequencies = _STYLES[config.style](config, positions)
    divisors = config.divisors
    if config.style == "longrope" and num_positions > config.max_position:
        divisors = config.long_divisors
    if divisors:
        frequencies = frequencies / torch.tensor(divisors, device=device)
    angles = positions.float() * frequencies
    half = config.rotary_dim // 2
    table = torch.empty(num_positions, config.rotary_dim, device=device)
    torch.cos(angles, out=table[:, :half])
    torch.sin(angles, out=table[:, half:])
    return table if config.attention_factor == 1.0 else table.mul_(config.attention_factor)


def _powers(config: RopeConfig, positions: Tensor) -> Tensor:
    """theta^(2 i / dim), wavelengths over 2 pi; float32 [1, dim / 2]."""
    steps = torch.arange(0, config.rotary_dim, 2, device=positions.device).float()
    return torch.pow(config.theta, (steps / config.rotary_dim).unsqueeze(0))


def _default(config: RopeConfig, positions: Tensor) -> Tensor:
    return 1.0 / _powers(config, positions)


def _linear(config: RopeConfig, positions: Tensor) -> Tensor:
    return _default(config, positions) / config.factor


def _proportional(config: RopeConfig, positions: Tensor) -> Tensor:
    """Pairs are those of the whole head, unlike in a rotation of fewer channels."""
    frequencies = _linear(config, positions)
    frequencies[:, int(config.share * config.rotary_dim // 2) :] = 0
    return frequencies


def _grown(config: RopeConfig, positions: Tensor, growth: Tensor) -> Tensor:
    """The default frequencies up to max_position; beyond, the base is multiplied by a power.

    In float64: powers of float32 vectors are rounded differently in tables of another length.
    """
    dim = config.rotary_dim
    base = config.theta * growth ** (dim / (dim - 2))
    steps = torch.arange(0, dim, 2, device=positions.device).double()
    grown = torch.pow(base, -steps / dim).float()
    return torch.where(positions >= config.max_position, grown, _default(config, positions))


def _dynamic(config: RopeConfig, positions: Tensor) -> Tensor:
    length = (positions + 1).clamp(min=config.max_position).double()
    growth = config.factor * length / config.max_position - (config.factor - 1)
    return _grown(config, positions, growth)


def _qwen_dynamic(config: RopeConfig, positions: Tensor) -> Tensor:
    length = (positions + 1).clamp(min=config.max_position).double()
    doublings = torch.ceil(torch.log2(length / config.max_position) + 1)
    return _grown(config, positions, (torch.exp2(doublings) - 1).clamp(min=1))


def _yarn(config: RopeConfig, positions: Tensor) -> Tensor:
    powers = _powers(config, positions)
    low, high = _yarn_range(config)
    index = torch.arange(config.rotary_dim // 2, device=positions.device, dtype=torch.float32)
    ramp = ((index - low) / (high - low)).clamp(0, 1)
    kept = (1 - ramp) * config.extrapolation_factor
    return 1.0 / (config.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _yarn_range(config: RopeConfig) -> tuple[float, float]:
    """Between which pairs frequencies go from kept to divided by the factor."""

    def pair_of(rotations: float) -> float:
        ratio = config.max_position / (rotations * 2 * math.pi)
        return config.rotary_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = pair_of(config.beta_fast), pair_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    return low, high + 0.001 if low == high else high


def _llama3(config: RopeConfig, positions: Tensor) -> Tensor:
    frequencies = _default(config, positions)
    wavelengths = 2 * math.pi / frequencies
    longest = config.max_position / config.low_freq_factor
    shortest = config.max_position / config.high_freq_factor
    scaled = torch.where(wavelengths > longest, frequencies / config.factor, frequencies)
    spread = config.high_freq_factor - config.low_freq_factor
    smooth = (config.max_position / wavelengths - config.low_freq_factor) / spread
    blended = (1 - smooth) * scaled / config.factor + smooth * scaled
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, scaled)


# Frequencies [1 or positions, rotary_dim / 2] of a style.
_STYLES: dict[str, Callable[[RopeConfig, Tensor], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "qwen_dynamic": _qwen_dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _default,
}
ROPE_STYLES = ("none", *_STYLES)
_RELATIVE = ("dynamic", "qwen_dynamic", "yarn", "llama3", "longrope")

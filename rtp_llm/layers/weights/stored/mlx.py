# SPDX-License-Identifier: Apache-2.0
"""Weights of MLX: integers in groups, each with a scale and a bias."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_config import StoredModules, UnsupportedFormatError, shown
from rtp_llm.layers.weights.stored_format import (
    FLOAT,
    WEIGHT_NAME,
    NamedTargets,
    StoredFormat,
    why_no_kernel,
)
from rtp_llm.layers.weights.targets import RowsTarget

if TYPE_CHECKING:
    from rtp_llm.device import Device

_ROW = "quantized checkpoint"
_SCALES, _BIASES = "scales", "biases"
_STACKED = ".switch_mlp."
_WORD_BITS = 32
_BITS = (2, 4, 8)
MULTIPLIED_BITS = (4, 8)
_GROUPS = (32, 64, 128)


class MlxGroups(StoredFormat):
    """weight uint32 [rows, columns x bits / 32], low bits first, scales and biases of groups.

    scales and biases [rows, columns / group]; a weight is code x scale + bias, each of the two
    results rounded to the scales' dtype, as MLX computes it.
    """

    title = "groups of MLX"
    marker: ClassVar[tuple[str, torch.dtype]] = (WEIGHT_NAME, torch.int32)
    rounds_activations = False

    def __init__(self, bits: int = 4, group: int = 64) -> None:
        self.name = f"mlx_{bits}_{group}"
        self.bits, self.column_block = bits, group
        self._codes = _WORD_BITS // bits  # of a word

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        groups = columns // self.column_block
        words = columns // self._codes
        return {_SCALES: (rows, groups), _BIASES: (rows, groups), WEIGHT_NAME: (rows, words)}

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return self._codes * math.prod(shape)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """Columns are divided between groups. Raises DivisionError if one would be split."""
        groups = columns and columns.blocks(self.column_block, suffix)
        if suffix != WEIGHT_NAME:
            return rows, groups
        return rows, groups and groups.scaled(self.column_block // self._codes)

    def stored_targets(self, weight: Tensor, scales: Tensor, biases: Tensor) -> NamedTargets:
        """Targets that keep the numbers; weight uint8 [rows, columns x bits / 8]."""
        yield _SCALES, RowsTarget(scales)
        yield _BIASES, RowsTarget(biases)
        yield WEIGHT_NAME, RowsTarget(weight.view(torch.int32))

    def float_targets(self, weight: Tensor) -> NamedTargets:
        shapes = self.shapes(*weight.shape)
        scales, biases = (_GroupTarget(shapes[each], weight.device) for each in (_SCALES, _BIASES))

        def dequantize(words: Tensor, _: Tensor, start: int) -> Tensor:
            here = slice(start, start + len(words))
            return self._dequantize(words, scales.rows[here], biases.rows[here], scales.dtype)

        yield _SCALES, scales
        yield _BIASES, biases
        shape = shapes[WEIGHT_NAME]
        yield WEIGHT_NAME, DequantizingTarget(weight, scales.rows, dequantize, self, shape)

    def _dequantize(
        self, words: Tensor, scales: Tensor, biases: Tensor, dtype: torch.dtype
    ) -> Tensor:
        shifts = torch.arange(0, _WORD_BITS, self.bits, device=words.device)
        codes = words.unsqueeze(-1) >> shifts & (1 << self.bits) - 1
        grouped = codes.view(len(words), -1, self.column_block).float()
        scaled = grouped.mul_(scales.unsqueeze(-1)).to(dtype).float()
        return scaled.add_(biases.unsqueeze(-1)).to(dtype).float().flatten(1)

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if self.bits not in MULTIPLIED_BITS:
            return f"no kernel multiplies integers of {self.bits} bits"
        return why_no_kernel("wna16_linear", device)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return "the products of experts have no kernel for groups with biases"

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        # A group has a scale and a bias of 16 bits in the file; here of 32, and a zero point.
        return self.weights_in(shape) // self.column_block * 5


class _GroupTarget(RowsTarget):
    """Keeps numbers in float32 and remembers the dtype they are stored in."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.rows, self.dtype = torch.empty(shape, device=device), torch.float32
        super().__init__(self.rows)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        self.dtype = rows.dtype
        super().write(start, rows)


# Those of weights that a kernel multiplies.
MLX_FORMATS = frozenset(
    MlxGroups(bits, group).name for bits in MULTIPLIED_BITS for group in _GROUPS
)


def read_mlx(config: Mapping[str, Any]) -> StoredModules:
    """Bits and group size of all modules; keys that name modules change them, or say false."""
    whole = _groups(config, MlxGroups())
    named: dict[str, StoredFormat] = {}
    experts = []
    for name, given in config.items():
        if given is not False and not isinstance(given, Mapping):
            continue
        stored = FLOAT if given is False else _groups(given, whole)
        if _STACKED in name:  # the loader takes experts apart
            pattern = re.escape(name).replace(re.escape(_STACKED), r"\.experts\.\d+\.")
            experts.append(((f"re:{pattern}$",), stored))
        named[name] = stored
    return StoredModules((*experts, (("Linear",), whole)), named=named)


def _groups(config: Mapping[str, Any], whole: MlxGroups) -> MlxGroups:
    if (mode := config.get("mode", "affine")) != "affine":
        raise UnsupportedFormatError(_ROW, f"MLX quantisation of mode {shown(mode)}")
    bits, group = config.get("bits", whole.bits), config.get("group_size", whole.column_block)
    if bits not in _BITS or group not in _GROUPS:
        found = f"MLX quantisation of {shown(bits)} bits in groups of {shown(group)}"
        raise UnsupportedFormatError(_ROW, found)
    return MlxGroups(bits, group)

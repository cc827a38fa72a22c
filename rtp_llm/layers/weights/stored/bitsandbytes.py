# SPDX-License-Identifier: Apache-2.0
"""Weights of bitsandbytes: 4 bits by a table (nf4, fp4), and int8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored.int8 import Int8Weights
from rtp_llm.layers.weights.stored.table4 import Table4Format, Table4Memory
from rtp_llm.layers.weights.stored_config import (
    StoredModules,
    UnsupportedFormatError,
    module_patterns,
    shown,
)
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget

if TYPE_CHECKING:
    from rtp_llm.device import Device

ABSMAX = f"{WEIGHT_NAME}.absmax"
STATE = "bitsandbytes__"  # the end of the name of a quantisation state begins with it
_ROW = "quantized checkpoint"
_KINDS = ("nf4", "fp4")
_UNUSED = frozenset(
    {
        "quant_map",
        "nested_absmax",
        "nested_quant_map",
        "weight_format",
        *(f"{STATE}{kind}" for kind in _KINDS),
    }
)
_LARGEST_INT8 = 7.874015718698502e-3  # 1 / 127 as the package has it


@dataclass(frozen=True, eq=False)
class NestedScales:
    """How bytes stand for absmax: table[byte] x scales[number of the byte / block] + offset."""

    table: Tensor
    scales: Tensor
    block: int
    offset: float

    def numbers(self, codes: Tensor, places: Tensor) -> Tensor:
        """float32 of codes uint8, which have these places among all of a weight."""
        return self.table[codes.long()] * self.scales[places // self.block] + self.offset


class Bnb4(Table4Format):
    """weight uint8 [rows, columns / 2], the first number in the high four bits.

    A weight is table[code] x absmax of its block; weight.absmax is float32 [rows, columns / block],
    or uint8 of `nested` scales. (In files both have one axis; see the loader.) `columns` are all of
    the weight's.
    """

    title = "4-bit weights of bitsandbytes"
    marker: ClassVar[tuple[str, torch.dtype]] = (WEIGHT_NAME, torch.uint8)

    def __init__(
        self,
        kind: str = "nf4",
        table: Tensor | None = None,
        block: int = 64,
        nested: NestedScales | None = None,
        columns: int = 0,
    ) -> None:
        self.name = f"bitsandbytes_{kind}"
        self.column_block = block
        self._table, self._nested, self._columns = table, nested, columns

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {WEIGHT_NAME: (rows, columns // 2), ABSMAX: (rows, columns // self.column_block)}

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return 2 * math.prod(shape)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """Columns are divided between blocks. Raises DivisionError if one would be split."""
        blocks = columns and columns.blocks(self.column_block, suffix)
        if suffix == ABSMAX:
            return rows, blocks
        return rows, blocks and blocks.scaled(self.column_block // 2)

    def placed(
        self, suffix: str, target: WeightTarget, rows: Shard | None, columns: Shard | None
    ) -> WeightTarget:
        if suffix != ABSMAX or self._nested is None:
            return target
        first = columns.ranges[0][0] // self.column_block if columns else 0
        return _NestedTarget(target, self._nested, rows, first, self._columns // self.column_block)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        shapes = self.shapes(*weight.shape)
        absmax = torch.empty(shapes[ABSMAX], device=weight.device)
        yield ABSMAX, RowsTarget(absmax)
        shape = shapes[WEIGHT_NAME]
        yield WEIGHT_NAME, DequantizingTarget(weight, absmax, self._dequantize, self, shape)

    def _dequantize(self, packed: Tensor, absmax: Tensor, start: int) -> Tensor:
        assert self._table is not None, "a format without its quantisation state"
        codes = torch.stack((packed >> 4, packed & 0xF), dim=-1).int()
        numbers = self._table.to(packed.device)[codes].view(len(packed), -1, self.column_block)
        return numbers.mul_(absmax[start : start + len(packed), :, None]).flatten(1)

    @property
    def table(self) -> tuple[float, ...]:
        assert self._table is not None, "a format without its quantisation state"
        return tuple(self._table.tolist())

    def stored_targets(self, memory: Table4Memory) -> NamedTargets:
        yield ABSMAX, RowsTarget(memory.scales)
        yield WEIGHT_NAME, _SwappedTarget(memory.codes)

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        nested = torch.float32.itemsize - torch.uint8.itemsize if self._nested else 0
        return self.weights_in(shape) // self.column_block * nested


class _SwappedTarget(RowsTarget):
    """Takes bytes with the even column in the high four bits, and stores it in the low ones."""

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        super().write(start, rows >> 4 | rows << 4)


class _NestedTarget:
    """Takes bytes of absmax, which are rows of a shard of a weight, and gives on the numbers."""

    def __init__(
        self,
        target: WeightTarget,
        nested: NestedScales,
        rows: Shard | None,
        first: int,
        blocks: int,
    ) -> None:
        """`first`: the first block of a row here; `blocks`: how many a whole row has."""
        self._target, self._nested = target, nested
        self._first, self._blocks = first, blocks
        ranges = rows.ranges if rows else ((0, target.shape[0]),)
        self._rows = torch.cat([torch.arange(*each) for each in ranges])
        self.shape = target.shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        count, width = rows.shape
        places = self._rows[start : start + count, None] * self._blocks + self._first
        self._target.write(start, self._nested.numbers(rows, places + torch.arange(width)))


def read_bitsandbytes(config: Mapping[str, Any]) -> StoredModules:
    """Of 4 bits or of 8, whatever the modules' own tensors say."""
    kept = module_patterns(config, "llm_int8_skip_modules")
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        stored: StoredFormat = Int8Weights("SCB", factor=_LARGEST_INT8)
        return StoredModules(((("Linear",), stored),), kept, _UNUSED)
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnsupportedFormatError(_ROW, f"bnb_4bit_quant_type {shown(kind)}")
    if (numbers := config.get("bnb_4bit_quant_storage") or "uint8") != "uint8":
        raise UnsupportedFormatError(_ROW, f"bnb_4bit_quant_storage {shown(numbers)}")
    return StoredModules(((("Linear",), Bnb4(kind)),), kept, _UNUSED)

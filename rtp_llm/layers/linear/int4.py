# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose float weights become 4-bit integers on loading, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.layers.linear.int_groups import IntGroupsLinear
from rtp_llm.layers.linear.tiled_groups import TiledGroupsLinear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.int_targets import GroupedWeight
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, NamedTargets
from rtp_llm.quantization.int4 import BITS, GROUP_SIZE, dequantize_rows, quantize_rows


class Int4Linear(IntGroupsLinear):
    """4 bits with a float32 scale and a zero point per GROUP_SIZE columns of a row.

    Raises ValueError for an odd number of columns.
    """

    def make_weight(self, options: LayerOptions) -> None:
        if self.columns % 2:
            raise ValueError(f"4-bit weights of {self.columns} columns: two share a byte")
        groups = -(-self.columns // GROUP_SIZE)
        self.set_products(
            [self.product(self.parts, self.columns, BITS, GROUP_SIZE, False, options, groups)]
        )

    def part_targets(self, name: str, first: int) -> NamedTargets:
        yield WEIGHT_NAME, _QuantizingTarget(self.products[0].memory(name), self.columns)


class TiledInt4Linear(Int4Linear, TiledGroupsLinear):
    """Int4Linear for a GPU's tensor cores; see TiledGroupsProduct for scales and odd sizes."""


class _QuantizingTarget:
    """Takes floating-point rows and stores them as 4-bit integers with scales and zero points."""

    def __init__(self, memory: GroupedWeight, columns: int) -> None:
        self._memory = memory
        self.shape: tuple[int, ...] = (len(memory.weight), columns)
        self.device = torch.device("cpu")

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    @property
    def stored_bytes(self) -> int:
        kept = self._memory.weight, self._memory.scales, self._memory.zeros
        return sum(each.nbytes for each in kept)

    def rounded(self, rows: Tensor) -> Tensor:
        return dequantize_rows(*quantize_rows(rows))

    def write(self, start: int, rows: Tensor) -> None:
        span = slice(start, start + len(rows))
        into = self._memory.weight, self._memory.scales, self._memory.zeros
        for whole, part in zip(into, quantize_rows(rows), strict=True):
            whole[span].copy_(part)

# SPDX-License-Identifier: Apache-2.0
"""Weights of stored formats whose integers are repacked in tiles for a GPU's tensor cores."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_products import TiledProducts
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GgufBlocks
from rtp_llm.layers.weights.stored.fp4 import Nvfp4, PackedMxfp4
from rtp_llm.layers.weights.stored.table4 import Table4Memory
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.layers.weights.tiled_format import TiledFormat
from rtp_llm.ops.gemm import nvfp4
from rtp_llm.ops.gemm.tiled_wna16_layout import (
    TILE_ROWS,
    Integers,
    empty_codes,
    put_codes,
    takes,
    with_numbers,
)
from rtp_llm.ops.gguf.integers import INTEGERS
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK, integers_of


class TiledMatrix(TiledProducts):
    """A weight [rows, columns]: as in the file while it loads, integers in tiles afterwards.

    Scales are rounded to 16 bits unless they are exact, and activations are not rounded.
    """

    def __init__(self, rows: int, columns: int, bits: int, options: LayerOptions) -> None:
        super().__init__()
        self._rows, self._columns, self._dtype = rows, columns, options.dtype
        self.bits = bits
        self.zero = options.parameter(0)

    def product(self, x: Tensor, bias: Tensor | None = None, float_results: bool = False) -> Tensor:
        """x [T, columns] @ weight.T + bias -> [T, rows] of x's dtype, or float32."""
        return self.multiply_float(x, bias) if float_results else self.multiply(x, bias)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows of int32 ids [T] -> [T, columns]."""
        rows = torch.empty(len(ids), self._columns, dtype=self._dtype, device=ids.device)
        ops.tiled_wna16_embedding(ids, self.weight, self.scale, self.zero_points, self.bits, rows)
        return rows

    @abstractmethod
    def targets(self, first: int, rows: int) -> NamedTargets:
        """Targets of `rows` rows from `first` on."""

    @abstractmethod
    def split(self, rows: slice) -> Integers:
        """The integers [rows, ...] of what was loaded."""

    def finish_loading(self) -> None:
        packed = empty_codes(self._rows, self._columns, self.bits, self.weight.device)
        scales: list[Tensor] = []
        zeros: list[Tensor] = []
        for start in range(0, self._rows, TILE_ROWS):
            found = self.split(slice(start, start + TILE_ROWS))
            put_codes(packed, start, found.codes.flatten(1), self.bits)
            scales.append(found.scale.flatten(1))
            if found.zero is not None:
                zeros.append(found.zero.flatten(1))
        zero = torch.cat(zeros) if zeros else None
        self.keep(*with_numbers(packed, self._columns, torch.cat(scales), zero))


class TiledGgufMatrix(TiledMatrix):
    """Blocks of GGUF files; K-quants have scales that are products of two numbers."""

    def __init__(self, rows: int, columns: int, stored: GgufBlocks, options: LayerOptions) -> None:
        self._kind, self._block_bytes = INTEGERS[stored.kind.name], stored.kind.block_bytes
        super().__init__(rows, columns, self._kind.bits, options)
        self.weight = options.parameter(*stored.shapes(rows, columns)[BLOCKS], dtype=torch.uint8)
        self.scale = options.parameter(0)

    def targets(self, first: int, rows: int) -> NamedTargets:
        yield BLOCKS, RowsTarget(self.weight.detach(), first, rows)

    def split(self, rows: slice) -> Integers:
        blocks = self.weight.detach()[rows]
        return self._kind.split(blocks.view(len(blocks), -1, self._block_bytes))


class TiledMxfp4Matrix(TiledMatrix):
    """MXFP4: twice its numbers are whole, and fit 5 bits; scales are exact."""

    def __init__(self, rows: int, columns: int, stored: PackedMxfp4, options: LayerOptions) -> None:
        super().__init__(rows, columns, 5, options)
        self._stored = stored
        self.weight = options.parameter(rows, columns // 2, dtype=torch.uint8)
        self.scale = options.parameter(rows, columns // BLOCK, dtype=torch.uint8)

    def targets(self, first: int, rows: int) -> NamedTargets:
        memory = (each.detach().narrow(0, first, rows) for each in (self.weight, self.scale))
        yield from self._stored.stored_targets(*memory)

    def split(self, rows: slice) -> Integers:
        return Integers(*integers_of(self.weight.detach()[rows], self.scale.detach()[rows]))


class TiledNvfp4Matrix(TiledMatrix):
    """NVFP4: twice its numbers are whole, and take 6 bits where 16 columns share a scale."""

    def __init__(self, rows: int, columns: int, stored: Nvfp4, options: LayerOptions) -> None:
        super().__init__(rows, columns, 6, options)
        self._stored = stored
        self.weight = options.parameter(rows, columns // 2, dtype=torch.uint8)
        self.scale = options.parameter(rows, columns // nvfp4.BLOCK, dtype=torch.int8)
        self.row_scales = options.parameter(rows, dtype=torch.float32)

    def targets(self, first: int, rows: int) -> NamedTargets:
        kept = self.weight, self.scale, self.row_scales
        memory = Table4Memory(*(each.detach().narrow(0, first, rows) for each in kept))
        yield from self._stored.stored_targets(memory)

    def split(self, rows: slice) -> Integers:
        kept = self.weight, self.scale, self.row_scales
        return nvfp4.integers_of(*(each.detach()[rows] for each in kept))

    def finish_loading(self) -> None:
        super().finish_loading()
        del self.row_scales


def tiled_matrix(
    rows: int, columns: int, stored: StoredFormat, options: LayerOptions
) -> TiledMatrix | None:
    """The matrix of a weight that stays integers on the device of `options`; None for others."""
    if not makes_tiles(rows, columns, stored, options):
        return None
    if isinstance(stored, GgufBlocks):
        return TiledGgufMatrix(rows, columns, stored, options)
    if isinstance(stored, PackedMxfp4):
        return TiledMxfp4Matrix(rows, columns, stored, options)
    assert isinstance(stored, Nvfp4)
    return TiledNvfp4Matrix(rows, columns, stored, options)


def makes_tiles(rows: int, columns: int, stored: StoredFormat, options: LayerOptions) -> bool:
    """Whether tiled_matrix() gives one."""
    if not isinstance(stored, TiledFormat):
        return False
    fits = takes(rows, columns, 0) and not stored.why_not_tiled(options.dtype)
    return fits and options.keeps("tiled_wna16_linear")

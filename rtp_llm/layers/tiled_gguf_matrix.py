# SPDX-License-Identifier: Apache-2.0
"""A weight of a GGUF file whose integers are repacked in tiles for a GPU's tensor cores."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_products import TiledProducts
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GgufBlocks
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.ops.gemm.tiled_wna16_layout import (
    TILE_ROWS,
    empty_codes,
    put_codes,
    takes,
    with_numbers,
)
from rtp_llm.ops.gguf.integers import INTEGERS, Integers


def makes_tiles(rows: int, columns: int, stored: GgufBlocks, options: LayerOptions) -> bool:
    """Whether a weight stays integers for the device of `options`, as a TiledGgufMatrix."""
    wanted = options.keeps("tiled_wna16_linear") and not stored.why_not_tiled(options.dtype)
    return wanted and takes(rows, columns, 0)


class TiledGgufMatrix(TiledProducts):
    """A weight [rows, columns]: the file's blocks while it loads, integers in tiles afterwards.

    Scales of K-quants, which are products of two numbers, are rounded to float16, and activations
    are not rounded.
    """

    def __init__(self, rows: int, columns: int, stored: GgufBlocks, options: LayerOptions) -> None:
        super().__init__()
        self._kind, self._columns, self._dtype = INTEGERS[stored.kind.name], columns, options.dtype
        self._block_bytes, self.bits = stored.kind.block_bytes, self._kind.bits
        self.weight = options.parameter(*stored.shapes(rows, columns)[BLOCKS], dtype=torch.uint8)
        self.scale, self.zero = (options.parameter(0) for _ in range(2))

    def product(self, x: Tensor, bias: Tensor | None = None, float_results: bool = False) -> Tensor:
        """x [T, columns] @ weight.T + bias -> [T, rows] of x's dtype, or float32."""
        return self.multiply_float(x, bias) if float_results else self.multiply(x, bias)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows of int32 ids [T] -> [T, columns]."""
        rows = torch.empty(len(ids), self._columns, dtype=self._dtype, device=ids.device)
        ops.tiled_wna16_embedding(ids, self.weight, self.scale, self.zero_points, self.bits, rows)
        return rows

    def targets(self, first: int, rows: int) -> NamedTargets:
        """Targets of `rows` rows from `first` on."""
        yield BLOCKS, RowsTarget(self.weight.detach(), first, rows)

    def finish_loading(self) -> None:
        blocks = self.weight.detach()
        packed = empty_codes(len(blocks), self._columns, self.bits, blocks.device)
        parts: list[Integers] = []
        for start in range(0, len(blocks), TILE_ROWS):
            rows = blocks[start : start + TILE_ROWS]
            found = self._kind.split(rows.view(len(rows), -1, self._block_bytes))
            put_codes(packed, start, found.codes.flatten(1), self.bits)
            parts.append(found._replace(codes=packed))
        scale = torch.cat([each.scale.flatten(1) for each in parts])
        zeros = [each.zero.flatten(1) for each in parts if each.zero is not None]
        self.keep(*with_numbers(packed, self._columns, scale, torch.cat(zeros) if zeros else None))

# SPDX-License-Identifier: Apache-2.0
"""The linear layer of GGUF blocks whose integers a GPU's tensor cores multiply."""

from __future__ import annotations

from torch import nn

from rtp_llm.layers.linear.gguf import FloatMatrix, GgufLinear
from rtp_llm.layers.linear.tiled import TiledLinear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_gguf_matrix import TiledGgufMatrix, makes_tiles
from rtp_llm.layers.tiled_products import TiledProducts
from rtp_llm.layers.weights.gguf_blocks import GgufBlocks


class TiledGgufLinear(TiledLinear, GgufLinear):
    """GgufLinear with integers in tiles; parts of other types and sizes become floats."""

    def blocks_matrix(self, rows: int, stored: GgufBlocks, options: LayerOptions) -> nn.Module:
        if makes_tiles(rows, self.columns, stored, options):
            return TiledGgufMatrix(rows, self.columns, stored, options)
        return FloatMatrix(rows, self.columns, stored, options)

    def fused(self) -> TiledProducts | None:
        first = self.matrices[0]
        return first if len(self.matrices) == 1 and isinstance(first, TiledProducts) else None

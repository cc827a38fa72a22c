# SPDX-License-Identifier: Apache-2.0
"""The linear layer of stored formats whose integers a GPU's tensor cores multiply."""

from __future__ import annotations

from torch import nn

from rtp_llm.layers.linear.matrices import FloatMatrix, MatricesLinear
from rtp_llm.layers.linear.tiled import TiledLinear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_matrix import tiled_matrix
from rtp_llm.layers.tiled_products import TiledProducts
from rtp_llm.layers.weights.stored_format import StoredFormat


class TiledStoredLinear(TiledLinear, MatricesLinear):
    """Integers in tiles; parts of other formats and sizes become floats."""

    def matrix(self, rows: int, stored: StoredFormat, options: LayerOptions) -> nn.Module:
        tiled = tiled_matrix(rows, self.columns, stored, options)
        return FloatMatrix(rows, self.columns, stored, options) if tiled is None else tiled

    def fused(self) -> TiledProducts | None:
        first = self.matrices[0]
        return first if len(self.matrices) == 1 and isinstance(first, TiledProducts) else None

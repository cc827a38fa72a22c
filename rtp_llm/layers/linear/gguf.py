# SPDX-License-Identifier: Apache-2.0
"""The linear layer whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

from torch import nn

from rtp_llm.layers.gguf_matrix import GgufMatrix
from rtp_llm.layers.linear.matrices import FloatMatrix, MatricesLinear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.gguf_blocks import GgufBlocks
from rtp_llm.layers.weights.stored_format import StoredFormat


class GgufLinear(MatricesLinear):
    """Parts in blocks stay so; parts that are floats in the file stay floats."""

    def matrix(self, rows: int, stored: StoredFormat, options: LayerOptions) -> nn.Module:
        if isinstance(stored, GgufBlocks):
            return GgufMatrix(rows, self.columns, stored, options, self.parts)
        return FloatMatrix(rows, self.columns, stored, options)

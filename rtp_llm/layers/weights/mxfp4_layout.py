# SPDX-License-Identifier: Apache-2.0
"""MXFP4 weights of experts in memory: the blocks and scales of the checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.mxfp4 import BLOCKS, SCALES, Mxfp4, why_not_multiplied
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget


class Mxfp4Blocks(WeightLayout):
    """weight [..., rows, columns / 2] and scales [..., rows, columns / 32], bytes as int8."""

    formats = frozenset({Mxfp4.name})

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        if options.quantization != "none":
            return False
        return not why_not_multiplied(options.dtype, options.capabilities)

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        shapes = Mxfp4().shapes(sum(self.parts.values()), self.columns)
        weight, scale = (
            options.parameter(*outer, *shapes[name], dtype=torch.int8) for name in (BLOCKS, SCALES)
        )
        return weight, scale

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        yield BLOCKS, RowsTarget(rows_of(weight, self.parts, part).view(torch.uint8))
        yield SCALES, RowsTarget(rows_of(scale, self.parts, part).view(torch.uint8))

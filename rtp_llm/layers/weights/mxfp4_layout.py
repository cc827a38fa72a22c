# SPDX-License-Identifier: Apache-2.0
"""MXFP4 weights of experts in memory: the blocks and scales of the checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.mxfp4 import BLOCKS, SCALES, Mxfp4, why_not_multiplied
from rtp_llm.layers.weights.stored.fp4 import PackedMxfp4, multiplies_experts
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets, StoredFormat


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
        if not isinstance(stored, Mxfp4):
            raise FormatError(f"{part} is stored as {stored.name}, and other parts as {Mxfp4.name}")
        blocks, scales = (rows_of(each, self.parts, part) for each in (weight, scale))
        yield from stored.stored_targets(blocks.view(torch.uint8), scales.view(torch.uint8))


class PackedMxfp4Blocks(Mxfp4Blocks):
    """Of experts that need not be those of gpt-oss."""

    formats = frozenset({PackedMxfp4.name})

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        return options.quantization == "none" and multiplies_experts(options.capabilities)

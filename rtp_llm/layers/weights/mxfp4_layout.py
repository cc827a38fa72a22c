# SPDX-License-Identifier: Apache-2.0
"""MXFP4 weights of experts in memory: the blocks and scales of the checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.gguf_blocks import gguf_format
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.mxfp4 import BLOCKS, SCALES, Mxfp4, why_not_multiplied
from rtp_llm.layers.weights.stored.fp4 import PackedMxfp4, multiplies_mxfp4
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget

_GGUF = gguf_format("MXFP4")
_LOW = 0xF


class Mxfp4Blocks(WeightLayout):
    """weight [..., rows, columns / 2] and scales [..., rows, columns / 32], bytes as int8."""

    formats = frozenset({Mxfp4.name, _GGUF.name})

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
        blocks, scales = (
            rows_of(each, self.parts, part).view(torch.uint8) for each in (weight, scale)
        )
        if stored == _GGUF:
            yield BLOCKS, _GgufMxfp4Target(blocks, scales)
        elif isinstance(stored, Mxfp4):
            yield from stored.stored_targets(blocks, scales)
        else:
            raise FormatError(f"{part} is stored as {stored.name}, and other parts as {Mxfp4.name}")


class PackedMxfp4Blocks(Mxfp4Blocks):
    """Of experts that need not be those of gpt-oss."""

    formats = frozenset({PackedMxfp4.name})

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        return options.quantization == "none" and multiplies_mxfp4(options.capabilities)


class _GgufMxfp4Target:
    """Takes GGUF blocks, uint8 [rows, 17 for each 32 weights]: a scale, and 16 bytes that have a
    number of the first half in the low four bits and one of the second half in the high ones."""

    def __init__(self, blocks: Tensor, scales: Tensor) -> None:
        self._blocks, self._scales = RowsTarget(blocks), RowsTarget(scales)
        groups = scales.shape[1]
        self.shape: tuple[int, ...] = (scales.shape[0], groups * _GGUF.kind.block_bytes)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        blocks = rows.view(len(rows), -1, _GGUF.kind.block_bytes)
        packed = blocks[:, :, 1:]
        halves = torch.cat((packed & _LOW, packed >> 4), -1)
        pairs = halves[:, :, ::2] | halves[:, :, 1::2] << 4
        self._blocks.write(start, pairs.flatten(1))
        self._scales.write(start, blocks[:, :, 0])

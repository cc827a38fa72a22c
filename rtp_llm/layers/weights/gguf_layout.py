# SPDX-License-Identifier: Apache-2.0
"""Weights of experts that stay in the blocks of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GGUF_FORMATS, GgufBlocks, activation_bits
from rtp_llm.layers.weights.layout import WeightLayout
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget

# Matrices int8 [experts, rows, bytes of a row], their tensor type, their rows in the layer.
Matrix = tuple[Tensor, str, range]


class GgufExperts(WeightLayout):
    """weight int8 [..., bytes]: the blocks of each part in order, which may have a type of its own.

    The scales are empty.
    """

    formats = GGUF_FORMATS

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        has_kernel = ops.has_kernel("gguf_grouped_linear", options.capabilities.torch_type)
        return options.quantization == "none" and has_kernel

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        self.activation_bits = activation_bits(options.settings.gguf_activations, self.parts)
        self._stored: dict[str, GgufBlocks] = {}
        for part, stored in zip(self.parts, self.stored, strict=True):
            assert isinstance(stored, GgufBlocks), "one of `formats`"
            self._stored[part] = stored
        size = sum(rows * self._row_bytes(part) for part, rows in self.parts.items())
        weight = options.parameter(*outer, size, dtype=torch.int8)
        return weight, options.parameter(*outer, 0, dtype=torch.int8)

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        if stored != self._stored[part]:
            raise FormatError(f"{part} is stored as {stored.name}, and of other experts otherwise")
        start = 0
        for name, rows in self.parts.items():
            end = start + rows * self._row_bytes(name)
            if name == part:
                yield BLOCKS, RowsTarget(weight[start:end].view(rows, -1).view(torch.uint8))
            start = end

    def matrices(self, weight: Tensor) -> Iterator[Matrix]:
        """Those of all experts, weight int8 [experts, bytes]: for each run of parts of a type."""
        start = row = 0
        for stored, run in groupby(self.parts, key=self._stored.__getitem__):
            rows = sum(self.parts[part] for part in run)
            size = rows * stored.shapes(1, self.columns)[BLOCKS][1]
            place = range(row, row + rows)
            blocks = torch.unflatten(weight[:, start : start + size], 1, (rows, -1))
            yield blocks, stored.kind.name, place
            start, row = start + size, row + rows

    def _row_bytes(self, part: str) -> int:
        return self._stored[part].shapes(1, self.columns)[BLOCKS][1]

# SPDX-License-Identifier: Apache-2.0
"""The linear layer with weights in MXFP4, which are multiplied as they are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.layout import rows_of
from rtp_llm.layers.weights.mxfp4 import Mxfp4
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK


class Mxfp4Linear(Linear):
    """weight int8 [1, rows, columns / 2] and scale int8 [1, rows, columns / 32] hold bytes.

    To the kernel the layer is the only expert of all rows. Activations are not quantised.
    """

    def make_weight(self, options: LayerOptions) -> None:
        shape = 1, self.rows, self.columns // 2
        self.weight = options.parameter(*shape, dtype=torch.int8)
        self.scale = options.parameter(1, self.rows, self.columns // BLOCK, dtype=torch.int8)
        self._rows, self._offsets = -1, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        offsets = self._offsets_of(len(x))
        bias = None if self.bias is None else self.bias.unsqueeze(0)
        return ops.mxfp4_grouped_linear(x.contiguous(), self.weight, self.scale, offsets, bias)

    def _offsets_of(self, rows: int) -> Tensor:
        """[0, rows] on the device; a new tensor only where another number of rows comes."""
        if self._rows != rows:
            self._rows = rows
            self._offsets = torch.tensor((0, rows), dtype=torch.int32, device=self.weight.device)
        return self._offsets

    def part_targets(self, name: str, first: int) -> NamedTargets:
        stored = self.formats[name]
        assert isinstance(stored, Mxfp4)
        blocks, scales = (
            rows_of(each.detach()[0], self.parts, name).view(torch.uint8)
            for each in (self.weight, self.scale)
        )
        yield from stored.stored_targets(blocks, scales)

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


class OneExpertLinear(Linear):
    """A layer that is to its kernel the only expert of all rows."""

    _rows = -1
    _offsets = torch.empty(0)

    def offsets_of(self, x: Tensor) -> Tensor:
        """[0, rows] on the device; a new tensor only where another number of rows comes."""
        if self._rows != len(x):
            self._rows = len(x)
            self._offsets = torch.tensor((0, len(x)), dtype=torch.int32, device=x.device)
        return self._offsets

    def bias_of_expert(self) -> Tensor | None:
        """bias [1, rows]."""
        return None if self.bias is None else self.bias.unsqueeze(0)


class Mxfp4Linear(OneExpertLinear):
    """weight int8 [1, rows, columns / 2] and scale int8 [1, rows, columns / 32] hold bytes.

    Activations are not quantised.
    """

    def make_weight(self, options: LayerOptions) -> None:
        shape = 1, self.rows, self.columns // 2
        self.weight = options.parameter(*shape, dtype=torch.int8)
        self.scale = options.parameter(1, self.rows, self.columns // BLOCK, dtype=torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.offsets_of(x), self.bias_of_expert()
        return ops.mxfp4_grouped_linear(x.contiguous(), self.weight, self.scale, *rows)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        stored = self.formats[name]
        assert isinstance(stored, Mxfp4)
        blocks, scales = (
            rows_of(each.detach()[0], self.parts, name).view(torch.uint8)
            for each in (self.weight, self.scale)
        )
        yield from stored.stored_targets(blocks, scales)

# SPDX-License-Identifier: Apache-2.0
"""The linear layer with FP8 weights and float activations, for devices without FP8 products."""

from __future__ import annotations

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_formats import Fp8Block, Fp8Format
from rtp_llm.layers.weights.fp8_layouts import Fp8Blocks, Fp8Channels, Fp8Layout
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.quantization.fp8 import BlockRows


class Fp8WeightLinear(Linear):
    """Weight e4m3 with float32 scales of blocks or of rows, as the parts are stored.

    See Fp8Blocks for the rows of zeros between parts, whose columns a copy drops from the result.
    """

    def make_weight(self, options: LayerOptions) -> None:
        self._layout, self._gaps = self._make_layout()
        self.weight, self.scale = self._layout.make(options)

    def _make_layout(self) -> tuple[Fp8Layout, BlockRows | None]:
        if not all(isinstance(each, Fp8Block) for each in self.formats.values()):
            return Fp8Channels(self.parts, self.columns), None
        blocks = Fp8Blocks(self.parts, self.columns)
        return blocks, blocks.rows if blocks.rows.has_gaps else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight[:, : self.columns]
        if self._gaps is None:
            return ops.fp8_weight_linear(x, weight[: self.rows], self.scale, self.bias)
        product = self._gaps.join(ops.fp8_weight_linear(x, weight, self.scale))
        return product if self.bias is None else product.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        stored = self.formats[name]
        assert isinstance(stored, Fp8Format)
        weight, scale = self._layout.slices(self.weight.detach(), self.scale.detach(), name)
        yield from stored.stored_targets(weight, scale)

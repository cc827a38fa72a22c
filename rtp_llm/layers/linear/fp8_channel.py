# SPDX-License-Identifier: Apache-2.0
"""The linear layer with FP8 weights and a scale for each output channel."""

from __future__ import annotations

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_layouts import Fp8Channels
from rtp_llm.layers.weights.stored_format import NamedTargets


class Fp8ChannelLinear(Linear):
    """Weight e4m3 with a float32 scale for each row; the bias is not quantised.

    Activations are quantised on the fly, with one scale per token. A weight stored with one scale
    for the tensor has that scale in all of its rows.
    """

    def make_weight(self, options: LayerOptions) -> None:
        self._layout = Fp8Channels(self.parts, self.columns)
        self.weight, self.scale = self._layout.make(options)

    def forward(self, x: Tensor) -> Tensor:
        numbers, scales = ops.fp8_quantize_tokens(x.contiguous())
        product = ops.fp8_channel_linear(numbers, scales, self.weight, self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        yield from self._layout.targets(self.weight, self.scale, name, self.formats[name])

# SPDX-License-Identifier: Apache-2.0
"""The linear layer with FP8 weights and a scale for each output channel."""

from __future__ import annotations

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_layouts import Fp8Channels
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.ops.fp8.fp8_norm import MAX_CHANNELS

# Up to so many rows the kernels of blocks were faster, on an H200 by 3 to 50%.
_FEW_ROWS = 32


class Fp8ChannelLinear(Linear):
    """Weight e4m3 with a float32 scale for each row; the bias is not quantised.

    Activations are quantised on the fly, with one scale per token. A weight stored with one scale
    for the tensor has that scale in all of its rows. Few rows go through the kernels of blocks, if
    the weight consists of whole ones: their scales are one, and products are multiplied by those of
    channels.
    """

    def make_weight(self, options: LayerOptions) -> None:
        self._layout = Fp8Channels(self.parts, self.columns)
        self.weight, self.scale = self._layout.make(options)
        self._has_blocks = self.rows % BLOCK == 0 and self.columns % BLOCK == 0
        self._quantizes_norms = self.columns <= MAX_CHANNELS and ops.has_kernel(
            "norm_fp8", options.device.type
        )
        if self._has_blocks:
            self.ones = options.parameter(
                self.rows // BLOCK, self.columns // BLOCK, dtype=self.scale.dtype
            )
            self.ones.data.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        if self._by_blocks(x):
            return self._multiply_blocks(*ops.fp8_quantize(x))
        numbers, scales = ops.fp8_quantize_tokens(x.contiguous())
        product = ops.fp8_channel_linear(numbers, scales, self.weight, self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        if not (self._quantizes_norms and self._by_blocks(residual)):
            return super().normed(norm, residual, pending)
        return self._multiply_blocks(*norm.after_as_fp8(pending, residual))

    def takes_gate(self, activation: GatedActivation) -> bool:
        return activation.name == "silu" and self._has_blocks

    def add_gated(
        self, residual: Tensor, pairs: Tensor, activation: GatedActivation
    ) -> Tensor | None:
        if not self._by_blocks(pairs):
            return super().add_gated(residual, pairs, activation)
        return self._multiply_blocks(*ops.silu_and_mul_fp8(pairs))

    def _by_blocks(self, x: Tensor) -> bool:
        return self._has_blocks and len(x) <= _FEW_ROWS

    def _multiply_blocks(self, numbers: Tensor, scales: Tensor) -> Tensor:
        product = ops.fp8_linear(numbers, scales, self.weight, self.ones)
        product.mul_(self.scale.view(1, -1))
        return product if self.bias is None else product.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        yield from self._layout.targets(self.weight, self.scale, name, self.formats[name])

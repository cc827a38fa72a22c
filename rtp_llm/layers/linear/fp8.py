# SPDX-License-Identifier: Apache-2.0
"""The linear layer with FP8 weights, for devices that multiply FP8 natively."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_layouts import Fp8Blocks
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.ops.fp8.fp8_norm import MAX_CHANNELS
from rtp_llm.quantization.fp8 import padded


class Fp8Linear(Linear):
    """Weight e4m3 with a float32 scale for every 128 x 128 block; the bias is not quantised.

    Activations are quantised on the fly, with one scale per 128 elements of a row. See
    Fp8Blocks for padding.
    """

    block_rows: ClassVar[int] = BLOCK

    def make_weight(self, options: LayerOptions) -> None:
        columns = self.columns
        self._missing = padded(columns) - columns
        self._layout = Fp8Blocks(self.parts, columns)
        self.weight, self.scale = self._layout.make(options)
        self._quantizes_norms = (
            not self._missing
            and columns <= MAX_CHANNELS
            and ops.has_kernel("norm_fp8", options.device.type)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self._missing:
            x = torch.nn.functional.pad(x, (0, self._missing))
        return self._multiply(*ops.fp8_quantize(x))

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        if not self._quantizes_norms:
            return super().normed(norm, residual, pending)
        return self._multiply(*norm.after_as_fp8(pending, residual))

    def takes_gate(self, activation: GatedActivation) -> bool:
        return activation.name == "silu" and not self._missing

    def add_gated(
        self, residual: Tensor, pairs: Tensor, activation: GatedActivation
    ) -> Tensor | None:
        """Quantise the activation directly, without an intermediate rounding."""
        return self._multiply(*ops.silu_and_mul_fp8(pairs))

    def _multiply(self, numbers: Tensor, scales: Tensor) -> Tensor:
        product = self._layout.rows.join(ops.fp8_linear(numbers, scales, self.weight, self.scale))
        return product if self.bias is None else product.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        yield from self._layout.targets(self.weight, self.scale, name, self.formats[name])

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
from rtp_llm.layers.weights.fp8_targets import NamedTargets, fp8_targets
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks
from rtp_llm.ops.fp8.fp8_norm import MOST_CHANNELS
from rtp_llm.quantization.fp8 import BlockRows, padded


class Fp8Linear(Linear):
    """Weight e4m3 with a float32 scale for every 128 x 128 block; the bias is not quantised.

    Activations are quantised on the fly, with one scale per 128 elements of a row. Each part begins
    at a block boundary, and columns are padded with zeros to whole blocks (see BlockRows).
    """

    block_rows: ClassVar[int] = BLOCK

    def make_weight(self, options: LayerOptions) -> None:
        columns = self.columns
        self._places = BlockRows(tuple(self.parts.values()))
        self._starts = dict(zip(self.parts, self._places.starts, strict=True))
        self._missing = padded(columns) - columns
        rows = self._places.total
        self.weight = options.parameter(rows, padded(columns), dtype=E4M3)
        if (rows, self._missing) != (self.rows, 0):
            self.weight.data.view(torch.uint8).zero_()
        self._quantizes_norms = (
            not self._missing
            and columns <= MOST_CHANNELS
            and ops.has_kernel("norm_fp8", options.device.type)
        )
        self.scale = options.parameter(rows // BLOCK, num_blocks(columns), dtype=torch.float32)

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
        product = self._places.join(ops.fp8_linear(numbers, scales, self.weight, self.scale))
        return product if self.bias is None else product.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        start, rows = self._starts[name], self.parts[name]
        weight = self.weight.detach().narrow(0, start, rows).narrow(1, 0, self.columns)
        scale = self.scale.detach().narrow(0, start // BLOCK, num_blocks(rows))
        yield from fp8_targets(weight, scale, self.stored_as_fp8[name])

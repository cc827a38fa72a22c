# SPDX-License-Identifier: Apache-2.0
"""The linear layer for devices with kernels that fuse small products with adjacent operations."""

from __future__ import annotations

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions


class FusedLinear(PlainLinear):
    """A linear layer that fuses norm, product and residual add for at most `max_rows` rows.

    From there up to `max_multiplied_rows` rows the product alone, with a gate after it, uses our
    own kernel; more rows take the plain path.
    """

    def make_weight(self, options: LayerOptions) -> None:
        super().make_weight(options)
        self.max_rows = ops.fused_linear_rows(self.weight)
        self.max_multiplied_rows = ops.skinny_linear_rows(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        if not 0 < x.shape[0] <= self.max_multiplied_rows:
            return super().forward(x)
        return ops.skinny_linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        # A partial sum must not be added to the residual yet.
        if self._shards.is_partial or not self._are_few(x.shape[0]):
            return super().add_to(residual, x)
        ops.linear_add(x, self.weight, self.bias, residual)
        return None

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        if pending is not None or not self._are_few(residual.shape[0]):
            return super().normed(norm, residual, pending)
        return ops.norm_linear(residual, norm.weight, norm.eps, self.weight, self.bias, norm.offset)

    def normed_gated(
        self, norm: RMSNorm, residual: Tensor, pending: Tensor | None, activation: GatedActivation
    ) -> Tensor:
        rows = residual.shape[0]
        if not 0 < rows <= self.max_multiplied_rows:
            return super().normed_gated(norm, residual, pending, activation)
        if pending is not None or not self._are_few(rows):
            x = norm.after(pending, residual)
            return ops.gated_linear(x, self.weight, self.bias, activation.name)
        return ops.norm_gated_linear(
            residual,
            norm.weight,
            norm.eps,
            self.weight,
            self.bias,
            activation.name,
            norm.offset,
        )

    def float_product(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return super().float_product(x)
        return ops.linear_float(x, self.weight)

    def _are_few(self, rows: int) -> bool:
        return 0 < rows <= self.max_rows  # with no rows, the kernels may not support the weight

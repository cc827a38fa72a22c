# SPDX-License-Identifier: Apache-2.0
"""Products with integer weights in tiles for tensor cores, alone and with what surrounds them."""

from __future__ import annotations

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.norm import RMSNorm


class TiledProducts(nn.Module):
    """A module whose weight, scale, zero and bits are those of ops.tiled_wna16_linear.

    zero is empty if there are no zero points.
    """

    weight: nn.Parameter
    scale: nn.Parameter
    zero: nn.Parameter
    bits: int

    @property
    def zero_points(self) -> Tensor | None:
        """What the kernel takes."""
        return self.zero if self.zero.numel() else None

    def keep(self, weight: Tensor, scale: Tensor, zero: Tensor | None) -> None:
        """Make these the parameters."""
        zeros = weight.new_empty(0) if zero is None else zero
        self.weight, self.scale, self.zero = (
            nn.Parameter(each, requires_grad=False) for each in (weight, scale, zeros)
        )

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, columns] @ weight.T + bias."""
        return ops.tiled_wna16_linear(x, self.weight, self.scale, self.zero_points, self.bits, bias)

    def multiply_float(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The same in float32."""
        return ops.tiled_wna16_float(x, self.weight, self.scale, self.zero_points, self.bits, bias)

    def normed(self, norm: RMSNorm, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """Apply the product to the norm of x, then a gate unless `activation` is "none"."""
        return ops.tiled_wna16_linear(
            x,
            self.weight,
            self.scale,
            self.zero_points,
            self.bits,
            bias,
            activation,
            norm.weight,
            norm.eps,
            norm.offset,
        )

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> None:
        """residual += the product, in place."""
        ops.tiled_wna16_add(x, self.weight, self.scale, self.zero_points, self.bits, bias, residual)

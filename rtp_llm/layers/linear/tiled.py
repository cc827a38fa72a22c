# SPDX-License-Identifier: Apache-2.0
"""Linear layers of integers in tiles, fused with the norm before and the residual after them."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.tiled_products import TiledProducts

_FUSED = ("silu", "gelu", "gelu_tanh")  # activations in the kernel


class TiledLinear(Linear):
    """A layer with the norm before it, the gate or the residual after it in its kernel."""

    @abstractmethod
    def fused(self) -> TiledProducts | None:
        """The one product that is the layer and takes x as it is, or None."""

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        product = self.fused()
        # A partial sum must not be added to the residual yet.
        if product is None or self._shards.is_partial:
            return super().add_to(residual, x)
        product.add_to(residual, x, self.bias)
        return None

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        product = self.fused()
        if product is None or pending is not None:
            return super().normed(norm, residual, pending)
        return product.normed(norm, residual, self.bias, "none")

    def normed_gated(
        self, norm: RMSNorm, residual: Tensor, pending: Tensor | None, activation: GatedActivation
    ) -> Tensor:
        product = self.fused()
        if product is None or pending is not None or activation.name not in _FUSED:
            return super().normed_gated(norm, residual, pending, activation)
        return product.normed(norm, residual, self.bias, activation.name)

    def float_product(self, x: Tensor) -> Tensor:
        product = self.fused()
        if product is None:
            return super().float_product(x)
        return product.multiply_float(x, self.bias)

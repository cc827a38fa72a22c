# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integer weights in groups for a GPU's tensor cores, fused with their norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.int_groups import IntGroupsLinear, IntGroupsProduct
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.ops.gemm.int_groups import (
    SortedGroups,
    dequantize,
    groups_in_order,
    unpack_bytes,
)
from rtp_llm.ops.gemm.tiled_wna16_layout import pack, takes

_FUSED = ("silu", "gelu", "gelu_tanh")  # activations in the kernel


class TiledGroupsProduct(IntGroupsProduct):
    """A weight in tiles for tensor cores; one that cannot be divided into tiles becomes floats.

    After pack(), zero is empty if all zero points are the middle of the codes, and `order` int64
    has the columns of x, with K for zeros. weight [rows, columns] may be floats.
    """

    @property
    def fuses(self) -> bool:
        """Whether the kernel takes x as it is."""
        return self.order is None and not self.weight.is_floating_point()

    @property
    def zero_points(self) -> Tensor | None:
        """What the kernel takes."""
        return self.zero if self.zero.numel() else None

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.order is not None:
            x = functional.pad(x, (0, 1)).index_select(1, self.order)
        if self.weight.is_floating_point():
            return ops.linear(x, self.weight, bias)
        return ops.tiled_wna16_linear(x, self.weight, self.scale, self.zero_points, self.bits, bias)

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

    def set_layout(self, found: SortedGroups) -> None:
        if found.order is not None:
            order = found.order.long().to(found.weight.device)
            order = torch.where(order < 0, self._columns, order)
            self.order = nn.Parameter(order, requires_grad=False)
        columns = found.weight.shape[1] * 8 // self.bits
        if not takes(self.rows, columns, found.group):
            self._become_floats(found, columns)
            return
        # A rank may have no column of the last groups.
        groups = columns // found.group if found.group else 1
        scale, zero = found.scale[:, :groups], found.zero[:, :groups]
        self._keep(*pack(found.weight, scale, zero, self.bits))

    def _become_floats(self, found: SortedGroups, columns: int) -> None:
        group_of = groups_in_order(columns, found.group).to(found.weight.device)
        codes = unpack_bytes(found.weight, self.bits)
        floats = dequantize(codes, found.scale, found.zero, group_of).to(self.dtype)
        self._keep(floats, floats.new_empty(0), None)

    def _keep(self, weight: Tensor, scale: Tensor, zero: Tensor | None) -> None:
        zeros = weight.new_empty(0) if zero is None else zero
        self.weight, self.scale, self.zero = (
            nn.Parameter(each, requires_grad=False) for each in (weight, scale, zeros)
        )


class TiledGroupsLinear(IntGroupsLinear):
    """IntGroupsLinear with the norm before it, the gate or the residual after it in its kernel."""

    @property
    def product(self) -> type[IntGroupsProduct]:
        return TiledGroupsProduct

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        product = self._fused()
        # A partial sum must not be added to the residual yet.
        if product is None or self._shards.is_partial:
            return super().add_to(residual, x)
        product.add_to(residual, x, self.bias)
        return None

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        product = self._fused()
        if product is None or pending is not None:
            return super().normed(norm, residual, pending)
        return product.normed(norm, residual, self.bias, "none")

    def normed_gated(
        self, norm: RMSNorm, residual: Tensor, pending: Tensor | None, activation: GatedActivation
    ) -> Tensor:
        product = self._fused()
        if product is None or pending is not None or activation.name not in _FUSED:
            return super().normed_gated(norm, residual, pending, activation)
        return product.normed(norm, residual, self.bias, activation.name)

    def _fused(self) -> TiledGroupsProduct | None:
        product = self.products[0]
        assert isinstance(product, TiledGroupsProduct)
        return product if len(self.products) == 1 and product.fuses else None

# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integer weights in groups for a GPU's tensor cores, fused with their norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.layers.linear.int_groups import IntGroupsLinear, IntGroupsProduct
from rtp_llm.layers.linear.tiled import TiledLinear
from rtp_llm.layers.tiled_products import TiledProducts
from rtp_llm.ops.gemm.int_groups import (
    SortedGroups,
    dequantize,
    groups_in_order,
    unpack_bytes,
)
from rtp_llm.ops.gemm.tiled_wna16_layout import pack, takes


class TiledGroupsProduct(IntGroupsProduct, TiledProducts):
    """A weight in tiles for tensor cores; one that cannot be divided into tiles becomes floats.

    After pack(), zero is empty if all zero points are the middle of the codes, and `order` int64
    has the columns of x, with K for zeros. weight [rows, columns] may be floats.
    """

    @property
    def fuses(self) -> bool:
        """Whether the kernel takes x as it is."""
        return self.order is None and not self.weight.is_floating_point()

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.order is not None:
            x = functional.pad(x, (0, 1)).index_select(1, self.order)
        if self.weight.is_floating_point():
            return ops.linear(x, self.weight, bias)
        return self.multiply(x, bias)

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
        self.keep(*pack(found.weight, scale, zero, self.bits))

    def _become_floats(self, found: SortedGroups, columns: int) -> None:
        group_of = groups_in_order(columns, found.group).to(found.weight.device)
        codes = unpack_bytes(found.weight, self.bits)
        floats = dequantize(codes, found.scale, found.zero, group_of).to(self.dtype)
        self.keep(floats, floats.new_empty(0), None)


class TiledGroupsLinear(TiledLinear, IntGroupsLinear):
    """IntGroupsLinear with the norm before it, the gate or the residual after it in its kernel."""

    @property
    def product(self) -> type[IntGroupsProduct]:
        return TiledGroupsProduct

    def fused(self) -> TiledGroupsProduct | None:
        product = self.products[0]
        assert isinstance(product, TiledGroupsProduct)
        return product if len(self.products) == 1 and product.fuses else None

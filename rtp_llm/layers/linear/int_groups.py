# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integer weights in groups, as GPTQ, AWQ and compressed-tensors have them."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.int_formats import IntGroups
from rtp_llm.layers.weights.int_targets import GroupedWeight
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.ops.gemm.int_groups import SortedGroups, groups_in_order, sort_by_group
from rtp_llm.ops.gemm.wna16_layout import GROUP_UNIT, pack, part_columns


class IntGroupsLinear(Linear):
    """A product for each run of parts that have bits, groups and the order of columns in common.

    There is one for most layers: parts share their input, and mostly their format.
    """

    @property
    def product(self) -> type[IntGroupsProduct]:
        """The class of the products."""
        return IntGroupsProduct

    def make_weight(self, options: LayerOptions) -> None:
        products = []
        for _, names in groupby(self.parts, self._kind):
            parts = {name: self.parts[name] for name in names}
            kept = self._format(next(iter(parts)))
            products.append(
                self.product(
                    parts,
                    self.columns,
                    kept.bits,
                    kept.group,
                    kept.ordered,
                    options,
                    kept.groups(self.columns),
                )
            )
        self.set_products(products)

    def set_products(self, products: list[IntGroupsProduct]) -> None:
        """Keep the products of all parts, in order."""
        self.products = products
        self.registered = nn.ModuleList(products)

    def _format(self, name: str) -> IntGroups:
        stored = self.formats[name]
        assert isinstance(stored, IntGroups)
        return stored

    def _kind(self, name: str) -> tuple[int, int, str]:
        stored = self._format(name)
        # Each part that is in order of its activations has one of its own, until they are known.
        return stored.bits, stored.group, name if stored.ordered else ""

    def forward(self, x: Tensor) -> Tensor:
        if len(self.products) == 1:
            return self.products[0](x, self.bias)  # type: ignore[no-any-return]
        result = torch.cat([product(x, None) for product in self.products], dim=1)
        return result if self.bias is None else result.add_(self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        product = next(each for each in self.products if name in each.parts)
        yield from self._format(name).stored_targets(product.memory(name))

    def finish_loading(self) -> None:
        """Parts in the same order of columns become one product, and all get their layout."""
        merged: list[IntGroupsProduct] = []
        for product in self.products:
            if not (merged and merged[-1].take(product)):
                merged.append(product)
        for product in merged:
            product.pack()
        self.set_products(merged)


class IntGroupsProduct(nn.Module):
    """weight uint8 [rows, columns x bits / 8], float32 scale and uint8 zero [rows, groups].

    See rtp_llm.ops.gemm.int_groups. group_of int32 [columns] is the group of each column, if the
    format says so (desc_act). After pack() they have the layout of the kernel, and `order` says
    where in x its columns are.
    """

    def __init__(
        self,
        parts: dict[str, int],
        columns: int,
        bits: int,
        group: int,
        ordered: bool,
        options: LayerOptions,
        groups: int,
    ) -> None:
        super().__init__()
        self.parts, self.rows = parts, sum(parts.values())
        self.bits, self.group, self._columns = bits, group, columns
        self.dtype = options.dtype
        width = columns * self.bits // 8
        self.weight = options.parameter(self.rows, width, dtype=torch.uint8)
        self.scale = options.parameter(self.rows, groups, dtype=torch.float32)
        self.zero = options.parameter(self.rows, groups, dtype=torch.uint8)
        self.order: nn.Parameter | None = None
        self.group_of: nn.Parameter | None = None
        if ordered:
            self.group_of = options.parameter(columns, dtype=torch.int32)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return ops.wna16_linear(
            x,
            self.weight,
            self.scale,
            self.zero,
            self.rows,
            self.bits,
            self.group,
            self.order,
            bias,
        )

    def memory(self, name: str) -> GroupedWeight:
        """Where the tensors of part `name` are loaded to."""
        first = 0
        for part, rows in self.parts.items():
            if part == name:
                break
            first += rows
        weight, scale, zero = (
            each.detach().narrow(0, first, rows) for each in (self.weight, self.scale, self.zero)
        )
        group_of = None if self.group_of is None else self.group_of.detach()
        return GroupedWeight(weight, scale, zero, self.bits, self.group, group_of)

    def take(self, other: IntGroupsProduct) -> bool:
        """Append the rows of `other`, unless its columns are in other groups; before pack()."""
        same = (self.bits, self.group) == (other.bits, other.group)
        if not same or self.group_of is None or other.group_of is None:
            return False
        if not torch.equal(self.group_of, other.group_of):
            return False
        for name in ("weight", "scale", "zero"):
            both = torch.cat([getattr(self, name), getattr(other, name)])
            setattr(self, name, nn.Parameter(both, requires_grad=False))
        self.parts = {**self.parts, **other.parts}
        self.rows += other.rows
        return True

    def pack(self) -> None:
        """Replace the weight by the layout of the device's kernel."""
        given = groups_in_order(self._columns, self.group)
        if self.group_of is not None:
            given = self.group_of.detach().long()
        tensors = self.weight.detach(), self.scale.detach(), self.zero.detach()
        found = sort_by_group(*tensors, self.bits, self.group, given.cpu(), GROUP_UNIT)
        self.group, self.group_of = found.group, None
        self.set_layout(found)

    def set_layout(self, found: SortedGroups) -> None:
        """Keep a weight, whose columns are sorted, in the layout of the kernel."""
        packed = pack(found.weight, found.scale, found.zero, self.bits, found.group)
        self.weight, self.scale, self.zero = (
            nn.Parameter(each, requires_grad=False) for each in packed
        )
        if found.order is not None:
            missing = -len(found.order) % part_columns(found.group)
            order = functional.pad(found.order, (0, missing), value=-1)
            self.order = nn.Parameter(order, requires_grad=False)

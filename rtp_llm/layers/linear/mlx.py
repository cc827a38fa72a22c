# SPDX-License-Identifier: Apache-2.0
"""The linear layer with MLX's groups of integers, which are multiplied as they are stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.linear.int_groups import IntGroupsProduct
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.stored.mlx import MlxGroups
from rtp_llm.layers.weights.stored_format import NamedTargets


class MlxLinear(Linear):
    """x @ (scale * code + bias of the group).T, all parts with the same bits and groups.

    Codes count from the middle of their range on, `middle`, so that the kernel of integers has
    scale * (code - middle), and a product of the sums of x in each group has the rest, `shift`
    [rows, groups], of bias + scale * middle in float32.
    """

    def make_weight(self, options: LayerOptions) -> None:
        stored = next(iter(self.formats.values()))
        assert isinstance(stored, MlxGroups)
        self._group, self._middle = stored.column_block, 1 << (stored.bits - 1)
        groups = self.columns // self._group
        self.product = IntGroupsProduct(
            self.parts, self.columns, stored.bits, self._group, False, options, groups
        )
        self.shift = options.parameter(self.rows, groups, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        grouped = torch.unflatten(x, 1, (-1, self._group))
        sums = grouped.sum(-1, dtype=torch.float32)
        product: Tensor = self.product(x, self.bias)
        return product.add_(ops.linear(sums, self.shift))

    def part_targets(self, name: str, first: int) -> NamedTargets:
        stored, memory = self.formats[name], self.product.memory(name)
        assert isinstance(stored, MlxGroups)
        memory.zeros.fill_(self._middle)
        shift = self.shift.detach().narrow(0, first, self.parts[name])
        yield from stored.stored_targets(memory.weight, memory.scales, shift)

    def finish_loading(self) -> None:
        shift = self.shift.detach() + self._middle * self.product.scale.detach()
        self.shift = nn.Parameter(shift, requires_grad=False)
        self.product.pack()

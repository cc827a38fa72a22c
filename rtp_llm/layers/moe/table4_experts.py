# SPDX-License-Identifier: Apache-2.0
"""Experts with 4-bit codes of a table, NVFP4 and bitsandbytes, with activations in floats."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights, has_kernels
from rtp_llm.layers.moe.grouped import PRODUCTS, GroupedExecutor, Product
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.layers.weights.table4_layout import Table4Experts

_OPERATORS = ("sort_by_expert", "table4_grouped_linear", "sum_experts")


class Table4Executor(GroupedExecutor):
    """Weights are decoded in registers, or a tile at a time, and never lie in memory as floats."""

    name: ClassVar[str] = "table4"
    priority: ClassVar[int] = 20

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._products: dict[str, tuple[Tensor, Tensor | None]] = {}  # tables, scales of rows

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "table4":
            return Support.no(f"it takes 4-bit codes of a table, not {context.weights}")
        return has_kernels(context, _OPERATORS)

    def finish_loading(self) -> None:
        for name in PRODUCTS:
            layer = self._layer(name)
            assert layer.scale is not None, "codes of a table"
            layout = _layout(layer)
            scales, of_rows = layout.split(layer.scale.detach())
            layer.scale = nn.Parameter(scales, requires_grad=False)
            if of_rows is not None:
                parameter = nn.Parameter(of_rows, requires_grad=False)
                layer.register_parameter("row_scale", parameter)  # its memory counts
            table = torch.tensor(layout.kept.table, device=scales.device)
            self._products[name] = table, of_rows

    def _product(self, name: Product, x: Tensor, offsets: Tensor) -> Tensor:
        layer = self._layer(name)
        assert layer.scale is not None, "codes of a table"
        table, of_rows = self._products[name]
        if missing := _layout(layer).missing:
            x = functional.pad(x, (0, missing))
        return ops.table4_grouped_linear(
            x, layer.weight, layer.scale, table, offsets, of_rows, layer.bias
        )


def _layout(layer: StackedLinearWeights) -> Table4Experts:
    assert isinstance(layer.layout, Table4Experts)
    return layer.layout

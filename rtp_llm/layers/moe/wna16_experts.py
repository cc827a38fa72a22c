# SPDX-License-Identifier: Apache-2.0
"""Experts with integer weights: groups of GPTQ, AWQ and compressed-tensors, and int8 channels."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights, has_kernels
from rtp_llm.layers.moe.grouped import PRODUCTS, GroupedExecutor, Product
from rtp_llm.layers.weights.int_layout import IntGroupWeights
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.ops.gemm.wna16_layout import Wna16Weights, pack

_OPERATORS = ("sort_by_expert", "wna16_grouped_linear", "sum_experts")


class Wna16Executor(GroupedExecutor):
    """Weights are reordered once they are loaded; see wna16_linear."""

    name: ClassVar[str] = "wna16"
    priority: ClassVar[int] = 20

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._zeros: dict[str, nn.Parameter] = {}

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights not in ("int_groups", "int8_channel"):
            return Support.no(f"it takes integers, not {context.weights}")
        return has_kernels(context, _OPERATORS)

    def finish_loading(self) -> None:
        for name in PRODUCTS:
            layer = self._layer(name)
            self._zeros[name] = _pack(layer)
            layer.register_parameter("zero", self._zeros[name])  # its memory counts

    def _product(self, name: Product, x: Tensor, offsets: Tensor) -> Tensor:
        layer = self._layer(name)
        layout, outputs = _layout(layer), sum(layer.parts.values())
        assert layer.scale is not None, "integers in groups"
        return ops.wna16_grouped_linear(
            x, layer.weight, layer.scale, self._zeros[name], offsets, outputs, layout.bits,
            layout.group, layer.bias,
        )  # fmt: skip


def _layout(layer: StackedLinearWeights) -> IntGroupWeights:
    assert isinstance(layer.layout, IntGroupWeights)
    return layer.layout


def _pack(layer: StackedLinearWeights) -> nn.Parameter:
    """Give the weight and the scales the order of the kernel, and return the zero points."""
    assert layer.scale is not None, "integers in groups"
    weight, numbers, layout = layer.weight.detach(), layer.scale.detach(), _layout(layer)
    how = layout.bits, layout.group
    packed = [
        pack(weight[slot], of_slot[..., 0], of_slot[..., 1].to(torch.uint8), *how)
        for slot, of_slot in enumerate(numbers)
    ]
    stacked = Wna16Weights(*(torch.stack(each) for each in zip(*packed, strict=True)))
    layer.weight = nn.Parameter(stacked.weight, requires_grad=False)
    layer.scale = nn.Parameter(stacked.scale, requires_grad=False)
    return nn.Parameter(stacked.zero, requires_grad=False)

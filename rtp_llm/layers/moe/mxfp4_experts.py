# SPDX-License-Identifier: Apache-2.0
"""Experts whose weights stay in MXFP4, with activations in floats."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights, has_kernels
from rtp_llm.layers.weights.stacked import StackedLinearWeights

_OPERATORS = ("sort_by_expert", "mxfp4_grouped_linear", "sum_experts")


class Mxfp4Executor(Executor):
    """Weights are decoded in registers, or a tile at a time, and never lie in memory as floats."""

    name: ClassVar[str] = "mxfp4"
    priority: ClassVar[int] = 20

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        config = context.config
        self._activation = GatedActivation(config.activation, config.alpha, config.limit)

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights not in ("mxfp4", "mxfp4_packed"):
            return Support.no(f"it takes weights in MXFP4, not {context.weights}")
        return has_kernels(context, _OPERATORS)

    def execute(self, dispatched: Dispatched) -> Tensor:
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        x = ops.embedding(rows // dispatched.ids.shape[1], dispatched.x)
        gated = self._activation(_product(x, self.weights.gate_up, offsets))
        y = _product(gated, self.weights.down, offsets)
        return ops.sum_experts(y, places, dispatched.weights)


def _product(x: Tensor, layer: StackedLinearWeights, offsets: Tensor) -> Tensor:
    assert layer.scale is not None, "weights in MXFP4"
    return ops.mxfp4_grouped_linear(x, layer.weight, layer.scale, offsets, layer.bias)

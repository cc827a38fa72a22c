# SPDX-License-Identifier: Apache-2.0
"""Experts whose weights stay in MXFP4, with activations in floats."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.executor import ExpertContext, has_kernels
from rtp_llm.layers.moe.grouped import GroupedExecutor, Product

_OPERATORS = ("sort_by_expert", "mxfp4_grouped_linear", "sum_experts")


class Mxfp4Executor(GroupedExecutor):
    """Weights are decoded in registers, or a tile at a time, and never lie in memory as floats."""

    name: ClassVar[str] = "mxfp4"
    priority: ClassVar[int] = 20

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights not in ("mxfp4", "mxfp4_packed"):
            return Support.no(f"it takes weights in MXFP4, not {context.weights}")
        return has_kernels(context, _OPERATORS)

    def _product(self, name: Product, x: Tensor, offsets: Tensor) -> Tensor:
        layer = self._layer(name)
        assert layer.scale is not None, "weights in MXFP4"
        return ops.mxfp4_grouped_linear(x, layer.weight, layer.scale, offsets, layer.bias)

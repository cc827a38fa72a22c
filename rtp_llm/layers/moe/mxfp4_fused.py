# SPDX-License-Identifier: Apache-2.0
"""Experts of gpt-oss in MXFP4 on tensor cores: two products, the SwiGLU in the first."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import SWIGLU_OAI
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, has_kernels
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.ops.moe.mxfp4_experts_layout import COLUMNS, pack_experts

_OPERATORS = ("sort_by_expert", "mxfp4_experts_gate_up", "mxfp4_experts_down", "sum_experts")


class Mxfp4FusedExecutor(Executor):
    """Weights are reordered once they are loaded, and decoded in registers."""

    name: ClassVar[str] = "mxfp4_fused"
    priority: ClassVar[int] = 21

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        config = context.config
        if context.weights != "mxfp4":
            return Support.no(f"it takes weights in MXFP4, not {context.weights}")
        if context.dtype != torch.bfloat16:
            return Support.no("it multiplies bfloat16")
        if config.activation != SWIGLU_OAI or not config.expert_bias:
            return Support.no(f"its experts have biases and the activation {SWIGLU_OAI}")
        hidden, inner = config.hidden_size, config.intermediate_size
        if hidden % COLUMNS or inner % COLUMNS:
            return Support.no(f"sizes {hidden} and {inner} are not multiples of {COLUMNS}")
        return has_kernels(context, _OPERATORS)

    def finish_loading(self) -> None:
        _pack(self.weights.gate_up, gated=True)
        _pack(self.weights.down, gated=False)

    def execute(self, dispatched: Dispatched) -> Tensor:
        config, top_k = self.context.config, dispatched.ids.shape[1]
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        gated = ops.mxfp4_experts_gate_up(
            dispatched.x, *_operands(self.weights.gate_up), rows, offsets, top_k, config.alpha,
            config.limit,
        )  # fmt: skip
        y = ops.mxfp4_experts_down(gated, *_operands(self.weights.down), offsets)
        return ops.sum_experts(y, places, dispatched.weights)


def _pack(layer: StackedLinearWeights, gated: bool) -> None:
    weight, scales, _ = _operands(layer)
    pack_experts(weight.detach().view(torch.uint8), scales.detach().view(torch.uint8), gated)


def _operands(layer: StackedLinearWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The weights, their scales and the biases."""
    assert layer.scale is not None and layer.bias is not None, "experts in MXFP4 with biases"
    return layer.weight, layer.scale, layer.bias

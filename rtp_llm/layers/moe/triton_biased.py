# SPDX-License-Identifier: Apache-2.0
"""Experts with biases and the SwiGLU of gpt-oss: two grouped products in Triton."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import SWIGLU_OAI
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, missing_kernels
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.ops.triton import compile_tiles

_OPERATORS = ("sort_by_expert", "sum_experts", "triton_biased_gate_up", "triton_biased_down")


class TritonBiasedExecutor(Executor):
    """Weights in 16-bit floats, or in MXFP4, which is decoded in registers."""

    name: ClassVar[str] = "triton_biased"
    priority: ClassVar[int] = 15

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        config = context.config
        if "triton" not in context.capabilities:
            return Support.no("its tiles were chosen and tested for other devices")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if context.dtype == torch.float32:
            return Support.no("float32 products do not run on tensor cores")
        if context.weights not in ("plain", "mxfp4"):
            return Support.no(f"it takes no {context.weights} weights")
        if config.activation != SWIGLU_OAI or not config.expert_bias:
            return Support.no(f"its experts have biases and the activation {SWIGLU_OAI}")
        missing = missing_kernels(context, _OPERATORS)
        if missing:
            return Support.no(f"no kernel of {missing}")
        return Support.yes()

    def execute(self, dispatched: Dispatched) -> Tensor:
        config, top_k = self.context.config, dispatched.ids.shape[1]
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        weight, scales, bias = _operands(self.weights.gate_up)
        gated = ops.triton_biased_gate_up(
            dispatched.x, weight, bias, rows, offsets, top_k, config.alpha, config.limit, scales
        )
        weight, scales, bias = _operands(self.weights.down)
        y = ops.triton_biased_down(gated, weight, bias, rows, offsets, scales)
        return ops.sum_experts(y, places, dispatched.weights)

    def warm_up(self) -> None:
        """Compile every tile by running it on one token without an expert."""
        config, gate_up = self.context.config, _operands(self.weights.gate_up)
        ids = torch.full((1, config.top_k), -1, dtype=torch.int32, device=gate_up[0].device)
        rows, places, offsets = ops.sort_by_expert(ids, self.context.slots)
        down, activation = _operands(self.weights.down), (config.alpha, config.limit)
        operands = gate_up, down, rows, offsets, config.top_k, activation
        compile_tiles("triton_biased_gate_up", *operands)
        y = down[2].new_zeros(config.top_k, down[2].shape[1])
        ops.sum_experts(y, places, torch.zeros(ids.shape, device=ids.device))


def _operands(layer: StackedLinearWeights) -> tuple[Tensor, Tensor | None, Tensor]:
    """The weights, their scales if they are in MXFP4, and the biases."""
    assert layer.bias is not None, "experts with biases"
    return layer.weight, layer.scale, layer.bias

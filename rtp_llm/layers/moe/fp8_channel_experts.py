# SPDX-License-Identifier: Apache-2.0
"""Experts in FP8 with a scale for each output channel: two grouped products in Triton."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, has_kernels
from rtp_llm.ops.triton import compile_tiles

_OPERATORS = ("sort_by_expert", "sum_experts", "triton_gate_up", "triton_down")


class Fp8ChannelExecutor(Executor):
    """Tokens, and what goes into the second product, are quantised with one scale per row."""

    name: ClassVar[str] = "fp8_channel"
    priority: ClassVar[int] = 20

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "fp8_channel":
            return Support.no(f"it takes FP8 weights with channel scales, not {context.weights}")
        if other := context.config.why_not_plain:
            return Support.no(other)
        return has_kernels(context, _OPERATORS)

    def execute(self, dispatched: Dispatched) -> Tensor:
        gate_up, down = self.weights.gate_up, self.weights.down
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        numbers, scales = ops.fp8_quantize_tokens(dispatched.x)
        gated = ops.triton_gate_up(
            numbers,
            gate_up.weight,
            rows,
            offsets,
            dispatched.ids.shape[1],
            x_scales=scales,
            weight_scales=gate_up.scale,
        )
        numbers, scales = ops.fp8_quantize_tokens(gated)
        y = ops.triton_down(
            numbers, down.weight, rows, offsets, x_scales=scales, weight_scales=down.scale
        )
        return ops.sum_experts(y, places, dispatched.weights)

    def warm_up(self) -> None:
        """Compile every tile by running it on one token without an expert."""
        gate_up, down = self.weights.gate_up, self.weights.down
        assert gate_up.scale is not None and down.scale is not None, "FP8 weights"
        first, second, top_k = gate_up.weight, down.weight, self.context.config.top_k
        ids = torch.full((1, top_k), -1, dtype=torch.int32, device=first.device)
        rows, _, offsets = ops.sort_by_expert(ids, self.context.slots)
        scales = (gate_up.scale, down.scale)
        compile_tiles("triton_gate_up", first, second, rows, offsets, top_k, scales)
        x = torch.zeros(1, first.shape[2], dtype=torch.bfloat16, device=first.device)
        weights = torch.zeros(ids.shape, device=ids.device)
        self.execute(Dispatched(x, ids, weights))

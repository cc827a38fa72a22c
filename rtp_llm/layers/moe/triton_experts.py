# SPDX-License-Identifier: Apache-2.0
"""Experts in 16-bit floats: two grouped products in Triton."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, missing_kernels
from rtp_llm.ops.triton import compile_tiles

_OPERATORS = ("sort_by_expert", "sum_experts")


class TritonExecutor(Executor):
    """Gate and up with the activation in one kernel, down in another, for any number of tokens.

    Tiles are chosen by the mean number of entries per expert, which the host knows; their
    distribution is never queried.
    """

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 10

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if "triton" not in context.capabilities:
            return Support.no("its tiles were chosen and tested for other devices")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if context.dtype == torch.float32:
            return Support.no("float32 products do not run on tensor cores")
        if context.weights != "plain":
            return Support.no(f"it takes no {context.weights} weights")
        if other := context.config.why_not_plain:
            return Support.no(other)
        missing = missing_kernels(context, _OPERATORS)
        if missing:
            return Support.no(f"no kernel of {missing}")
        return Support.yes()

    def execute(self, dispatched: Dispatched) -> Tensor:
        gate_up, down = self.weights.gate_up.weight, self.weights.down.weight
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        gated = ops.triton_gate_up(dispatched.x, gate_up, rows, offsets, dispatched.ids.shape[1])
        y = ops.triton_down(gated, down, rows, offsets)
        return ops.sum_experts(y, places, dispatched.weights)

    def warm_up(self) -> None:
        """Compile every tile by running it on one token without an expert."""
        gate_up, down = self.weights.gate_up.weight, self.weights.down.weight
        ids = torch.full(
            (1, self.context.config.top_k), -1, dtype=torch.int32, device=gate_up.device
        )
        rows, places, offsets = ops.sort_by_expert(ids, self.context.slots)
        compile_tiles("triton_gate_up", gate_up, down, rows, offsets, ids.shape[1])
        y = down.new_zeros(ids.shape[1], down.shape[1])
        ops.sum_experts(y, places, torch.zeros(ids.shape, device=ids.device))

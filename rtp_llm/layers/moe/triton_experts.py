"""Experts on NVIDIA GPUs in 16-bit floats: two grouped products in Triton."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext

_OPERATORS = ("sort_by_expert", "sum_experts")


class TritonExecutor(Executor):
    """Gate and up with the activation in one kernel, down in another, for any number of tokens.

    Tiles follow the entries that an expert has in the mean, which the host knows; how they are
    distributed it never asks.
    """

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 10

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.device_type != "cuda" or torch.version.hip is not None:
            return Support.no("its tiles were chosen and tested on NVIDIA GPUs only")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if context.dtype == torch.float32:
            return Support.no("float32 products do not run on tensor cores")
        if context.weights != "plain":
            return Support.no(f"it takes no {context.weights} weights")
        if context.config.activation != "silu":
            return Support.no(f"its activation is silu, not {context.config.activation}")
        missing = [name for name in _OPERATORS if not ops.has_kernel(name, context.device_type)]
        if missing:
            return Support.no(f"no kernel of {', '.join(missing)}")
        return Support.yes()

    def execute(self, dispatched: Dispatched) -> Tensor:
        gate_up, down = self.weights.gate_up.weight, self.weights.down.weight
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        gated = ops.triton_gate_up(dispatched.x, gate_up, rows, offsets, dispatched.ids.shape[1])
        y = ops.triton_down(gated, down, rows, offsets)
        return ops.sum_experts(y, places, dispatched.weights)

    def warm_up(self) -> None:
        """Every tile, on one token without an expert."""
        from rtp_llm.kernels.triton.moe.moe_experts import all_tiles, down, gate_up

        config, gate_up_weight = self.context.config, self.weights.gate_up.weight
        x = gate_up_weight.new_zeros(1, config.hidden_size)
        ids = torch.full((1, config.top_k), -1, dtype=torch.int32, device=x.device)
        rows, places, offsets = ops.sort_by_expert(ids, self.context.slots)
        weights = torch.zeros(1, config.top_k, device=x.device)
        for tiles in all_tiles(x.device):
            gated = gate_up(x, gate_up_weight, rows, offsets, config.top_k, tile=tiles.gate_up)
            y = down(gated, self.weights.down.weight, rows, offsets, tile=tiles.down)
            ops.sum_experts(y, places, weights)

# SPDX-License-Identifier: Apache-2.0
"""Experts whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights, has_kernels
from rtp_llm.layers.weights.gguf_layout import GgufExperts, Matrix
from rtp_llm.layers.weights.stacked import StackedLinearWeights

_OPERATORS = ("sort_by_expert", "gguf_linear", "sum_experts")


class GgufExecutor(Executor):
    """One product for each chosen expert. Only the CPU has the kernel, where nothing waits for the
    numbers of rows and no graph captures the calls."""

    name: ClassVar[str] = "gguf"
    priority: ClassVar[int] = 20

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        config = context.config
        self._activation = GatedActivation(config.activation, config.alpha, config.limit)
        self._gate_up, self._down = _Products(weights.gate_up), _Products(weights.down)

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "gguf":
            return Support.no(f"it takes the blocks of GGUF files, not {context.weights} weights")
        return has_kernels(context, _OPERATORS)

    def execute(self, dispatched: Dispatched) -> Tensor:
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        x = ops.embedding(rows // dispatched.ids.shape[1], dispatched.x)
        spans = list(pairwise(offsets.tolist()))
        gated = self._activation(self._gate_up(x, spans))
        return ops.sum_experts(self._down(gated, spans), places, dispatched.weights)

    def finish_loading(self) -> None:
        self._gate_up.finish_loading()
        self._down.finish_loading()


class _Products:
    """The products of rows with the experts that they were sorted by."""

    def __init__(self, weights: StackedLinearWeights) -> None:
        layout = weights.layout
        assert isinstance(layout, GgufExperts), "weights in blocks"
        self._bias, self._bits = weights.bias, layout.activation_bits
        self._rows = sum(weights.parts.values())
        self._experts: list[list[Matrix]] = [
            list(layout.matrices(weight)) for weight in weights.weight.detach()
        ]

    def __call__(self, x: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        """x [R, K]; rows spans[e][0] to spans[e][1] belong to expert e -> [R, N]."""
        out = torch.empty(len(x), self._rows, dtype=x.dtype, device=x.device)
        for expert, (start, end) in enumerate(spans):
            if start == end:
                continue
            for blocks, kind, place in self._experts[expert]:
                bias = None
                if self._bias is not None:
                    bias = self._bias[expert, place.start : place.stop]
                product = ops.gguf_linear(x[start:end], blocks, kind, bias, self._bits)
                out[start:end, place.start : place.stop] = product
        return out

    def finish_loading(self) -> None:
        """Interleave the blocks, in place."""
        for matrices in self._experts:
            for blocks, kind, _ in matrices:
                ops.gguf_interleave(blocks, kind)

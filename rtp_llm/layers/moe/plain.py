# SPDX-License-Identifier: Apache-2.0
"""Experts on any device: rows are sorted by expert, with one product per expert."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights, missing_kernels

_OPERATORS = ("sort_by_expert", "grouped_linear", "sum_experts")


class PlainExecutor(Executor):
    """Experts computed with generic operators, in any float dtype."""

    name: ClassVar[str] = "plain"
    priority: ClassVar[int] = 0

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        config = context.config
        self._activation = GatedActivation(config.activation, config.alpha, config.limit)
        self._gate_up, self._down = weights.gate_up, weights.down

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "plain":
            return Support.no(f"it takes no {context.weights} weights (--quantization none does)")
        missing = missing_kernels(context, _OPERATORS)
        if missing and not ops.references_allowed():
            return Support.no(
                f"no kernel of {missing} on {context.capabilities} "
                "(--allow-reference-ops lets their slow references run)"
            )
        return Support.yes()

    def execute(self, dispatched: Dispatched) -> Tensor:
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        x = ops.embedding(rows // dispatched.ids.shape[1], dispatched.x)
        gate_up, down = self._gate_up, self._down
        # Rows past those of the local experts are not used, whatever is added to them.
        experts = dispatched.ids.flatten()[rows].clamp_(min=0) if gate_up.bias is not None else rows
        gated = self._activation(
            _with_bias(ops.grouped_linear(x, gate_up.weight, offsets), gate_up.bias, experts)
        )
        y = _with_bias(ops.grouped_linear(gated, down.weight, offsets), down.bias, experts)
        return ops.sum_experts(y, places, dispatched.weights)


def _with_bias(rows: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    """Add each row's bias, `bias` [E, N], in place; `experts` [R]."""
    return rows if bias is None else rows.add_(bias.index_select(0, experts))

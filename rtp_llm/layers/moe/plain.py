# SPDX-License-Identifier: Apache-2.0
"""Experts on any device: rows are sorted by expert, with one product per expert."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights

_OPERATORS = ("sort_by_expert", "grouped_linear", "sum_experts")


class PlainExecutor(Executor):
    """Experts computed with generic operators, in any float dtype."""

    name: ClassVar[str] = "plain"
    priority: ClassVar[int] = 0

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._activation = GatedActivation(context.config.activation)
        self._gate_up, self._down = weights.gate_up, weights.down

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "plain":
            return Support.no(f"it takes no {context.weights} weights (--quantization none does)")
        missing = [
            name for name in _OPERATORS if not ops.has_kernel(name, context.capabilities.torch_type)
        ]
        if missing and not ops.references_allowed():
            return Support.no(
                f"no kernel of {', '.join(missing)} on {context.capabilities} "
                "(--allow-reference-ops lets their slow references run)"
            )
        return Support.yes()

    def execute(self, dispatched: Dispatched) -> Tensor:
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        x = ops.embedding(rows // dispatched.ids.shape[1], dispatched.x)
        gated = self._activation(ops.grouped_linear(x, self._gate_up.weight, offsets))
        y = ops.grouped_linear(gated, self._down.weight, offsets)
        return ops.sum_experts(y, places, dispatched.weights)

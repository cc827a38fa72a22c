# SPDX-License-Identifier: Apache-2.0
"""Experts in FP8 blocks: tokens are gathered by expert for two grouped products.

Masked: each expert has room for all tokens and uses some of the rows; suited to few tokens.
Contiguous: the experts' rows follow one another; suited to many. In both cases the host knows the
sizes from the number of tokens alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights, has_kernels

_OPERATORS = ("sort_by_expert", "sum_experts")
# Above this number of tokens the contiguous layout was faster, and it needs less memory.
MAX_MASKED_TOKENS = 32


@dataclass(frozen=True)
class _Weights:
    """Both products' weights and scales."""

    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor

    @classmethod
    def of(cls, weights: ExpertWeights) -> _Weights:
        gate_up, down = weights.gate_up, weights.down
        assert gate_up.scale is not None and down.scale is not None, "weights in FP8 blocks"
        return cls(gate_up.weight, gate_up.scale, down.weight, down.scale)


class _Fp8Executor(Executor):
    """The common base of both layouts."""

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._own = _Weights.of(weights)
        self._hidden = context.config.hidden_size

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "fp8":
            return Support.no(f"it takes FP8 weights, not {context.weights} ones")
        if other := context.config.why_not_plain:
            return Support.no(other)
        return has_kernels(context, _OPERATORS)

    def _summed(self, y: Tensor, places: Tensor, dispatched: Dispatched) -> Tensor:
        out = ops.sum_experts(y, places, dispatched.weights)
        return out if out.shape[1] == self._hidden else out[:, : self._hidden].contiguous()


class Fp8MaskedExecutor(_Fp8Executor):
    """Each expert has room for as many rows as there are tokens."""

    name: ClassVar[str] = "fp8_masked"
    priority: ClassVar[int] = 21

    def execute(self, dispatched: Dispatched) -> Tensor:
        weights, slots = self._own, self.context.slots
        _, places, offsets = ops.sort_by_expert(dispatched.ids, slots)
        numbers, scales, rows, counts = ops.scatter_fp8(
            dispatched.x, dispatched.ids, places, offsets
        )
        expected = usual_rows(dispatched.ids.numel(), slots)
        pairs = ops.fp8_grouped_masked(
            numbers, scales, weights.gate_up, weights.gate_up_scale, counts, expected
        )
        numbers, scales = ops.silu_and_mul_fp8(pairs, counts)
        y = ops.fp8_grouped_masked(
            numbers, scales, weights.down, weights.down_scale, counts, expected
        )
        return self._summed(y.flatten(0, 1), rows, dispatched)


class Fp8ContiguousExecutor(_Fp8Executor):
    """The experts' rows one after the other."""

    name: ClassVar[str] = "fp8_contiguous"
    priority: ClassVar[int] = 20

    def execute(self, dispatched: Dispatched) -> Tensor:
        weights, slots = self._own, self.context.slots
        _, places, offsets = ops.sort_by_expert(dispatched.ids, slots)
        numbers, scales, rows, starts, counts = ops.scatter_fp8_ragged(
            dispatched.x, dispatched.ids, places, offsets
        )
        expected = usual_rows(dispatched.ids.numel(), slots)
        pairs = ops.fp8_grouped_ragged(
            numbers, scales, weights.gate_up, weights.gate_up_scale, starts, counts, expected
        )
        # Entries of experts on other ranks have no row, and no rows follow the last expert's.
        numbers, scales = ops.silu_and_mul_fp8(pairs[None], starts[-1:])
        y = ops.fp8_grouped_ragged(
            numbers[0], scales[0], weights.down, weights.down_scale, starts, counts, expected
        )
        return self._summed(y, rows, dispatched)


class Fp8Executor(_Fp8Executor):
    """Masked for few tokens, contiguous for more."""

    name: ClassVar[str] = "fp8"
    priority: ClassVar[int] = 22

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._few = Fp8MaskedExecutor(context, weights)
        self._many = Fp8ContiguousExecutor(context, weights)

    def execute(self, dispatched: Dispatched) -> Tensor:
        few = dispatched.x.shape[0] <= MAX_MASKED_TOKENS
        return (self._few if few else self._many).execute(dispatched)


def usual_rows(entries: int, slots: int) -> int:
    """A number of rows that most experts do not exceed if entries are distributed at random.

    It is two standard deviations above the mean.
    """
    mean = entries / slots
    return max(1, math.ceil(mean + 2 * math.sqrt(mean)))

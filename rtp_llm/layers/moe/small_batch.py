# SPDX-License-Identifier: Apache-2.0
"""A block for few tokens in as few kernels as possible, with the shared expert as a routed one."""

from __future__ import annotations

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear, PlainLinear
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights
from rtp_llm.layers.moe.gate import Gate
from rtp_llm.layers.moe.shared import SharedExperts
from rtp_llm.ops.moe.moe import ROUTED_EXPERTS

MAX_TOKENS = 64  # measured on an H200 with the shape of Qwen3-Next
_OPERATORS = ("route_experts", "add_experts")


class SmallBatch:
    """Router, selection and order of experts, gate and up, down, and the sum onto the residual.

    A launch costs about as much as the work of a few tokens, so every launch saved counts. The
    shared expert is computed like a routed one if it has the same shape; for many tokens a separate
    product reads its weights fewer times. More than `max_tokens` tokens go through the executor.

    `divided`: this rank's experts, if they are sharded over tensor-parallel ranks; the result is
    then a partial sum.
    """

    max_tokens = MAX_TOKENS

    def __init__(
        self,
        gate: Gate,
        weights: ExpertWeights,
        shared: SharedExperts | None,
        divided: tuple[int, ...] = (),
    ) -> None:
        self._gate, self._weights = gate, weights
        self._is_partial = bool(divided)
        self._first, self._count = (divided[0], len(divided)) if divided else (0, 0)
        fused = shared if shared is not None and _is_expert(shared, weights) else None
        self._fused = fused
        self._apart = shared if fused is None else None

    @staticmethod
    def supports(context: ExpertContext) -> bool:
        """Whether this can replace TritonExecutor, the executor chosen for `context`."""
        config = context.config
        has = all(ops.has_kernel(name, context.capabilities.torch_type) for name in _OPERATORS)
        fits = config.top_k <= ROUTED_EXPERTS and config.hidden_size % 8 == 0
        return has and fits and config.plain_softmax

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        """Return the layer's output for x, to be added to `residual`, both [T, hidden].

        Returns None if it was added in place. T is at most `max_tokens`.
        """
        config, fused = self._gate.config, self._fused
        gate_up, down = self._weights.gate_up.weight, self._weights.down.weight
        logits = self._gate.logits(x)
        shared = (None, None, None) if fused is None else _weights_of(fused)
        weights, rows, places, offsets, tiles = ops.route_experts(
            logits, x, shared[0], config.top_k, config.renormalize, self._first, self._count
        )
        gated = ops.triton_gate_up(x, gate_up, rows, offsets, places.shape[1], shared[1], tiles)
        y = ops.triton_down(gated, down, rows, offsets, shared[2], tiles)
        out = residual
        if self._is_partial:
            out = ops.sum_experts(y, places, weights)
        else:
            ops.add_experts(y, places, weights, residual)
        if self._apart is not None:
            self._apart.add_to(out, x)
        return out if self._is_partial else None

    def warm_up(self) -> None:
        """Compile for every number of tokens."""
        hidden = self._gate.config.hidden_size
        for tokens in range(1, self.max_tokens + 1):
            x = self._gate.weight.new_zeros(tokens, hidden)
            self.add_to(x.clone(), x)


def _is_expert(shared: SharedExperts, weights: ExpertWeights) -> bool:
    """Whether the shared expert has the shape of a routed one and is gated by a sigmoid."""
    layers = (shared.gate_up_proj, shared.down_proj)
    if not all(isinstance(each, PlainLinear) and each.bias is None for each in layers):
        return False
    shapes = weights.gate_up.weight.shape[1:], weights.down.weight.shape[1:]
    return shared.gate is not None and tuple(_weight(each).shape for each in layers) == shapes


def _weight(linear: Linear) -> Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def _weights_of(shared: SharedExperts) -> tuple[Tensor | None, Tensor, Tensor]:
    return shared.gate, _weight(shared.gate_up_proj), _weight(shared.down_proj)

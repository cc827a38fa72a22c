# SPDX-License-Identifier: Apache-2.0
"""The feed-forward layer that is a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from rtp_llm.layers.layer import Layer
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.moe.dispatcher import (
    Dispatched,
    Dispatcher,
    DividedDispatcher,
    LocalDispatcher,
    SelectionStep,
)
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights
from rtp_llm.layers.moe.gate import Gate
from rtp_llm.layers.moe.shared import SharedExperts
from rtp_llm.layers.moe.small_batch import SmallBatch
from rtp_llm.layers.moe.strategy import choose_executor
from rtp_llm.layers.moe.triton_experts import TritonExecutor
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.stacked import StackedLinearWeights, StoredExperts, weight_format
from rtp_llm.layers.weights.targets import WeightTarget, weight_targets


class MoeBlock(Layer):
    """Expert selection, dispatch and combination, and the shared experts; replaces a GatedMLP.

    It is the decoder layer's `mlp`. `experts.gate_up` and `experts.down` hold the weights by slot.
    """

    GATE: ClassVar[type[Gate]] = Gate
    shared: SharedExperts | None
    small_batch: SmallBatch | None

    def __init__(self, index: int, config: MoeConfig, options: LayerOptions) -> None:
        super().__init__()
        self.index, self.config = index, config
        self.dispatcher, self.steps = _way_to_experts(index, config, options)
        context = expert_context(config, options, self.dispatcher)
        kind = choose_executor(context, options.settings.moe_strategy)
        self.gate = self.GATE(config, options)
        self.experts = _Experts(config, self.dispatcher.local_experts, options)
        weights = ExpertWeights(self.experts.gate_up, self.experts.down)
        self.executor = kind(context, weights)
        self.shared = None
        if config.shared_intermediate_size:
            self.shared = SharedExperts(config, options)
        self.small_batch = None
        divided = self._divided()
        local = isinstance(self.dispatcher, LocalDispatcher) or divided
        if local and not self.steps and kind is TritonExecutor and SmallBatch.supports(context):
            self.small_batch = SmallBatch(self.gate, weights, self.shared, divided)

    def _divided(self) -> tuple[int, ...]:
        """This rank's experts if they are sharded over tensor-parallel ranks, else empty."""
        way = self.dispatcher
        return way.local_experts if isinstance(way, DividedDispatcher) else ()

    def forward(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.normed and add_to."""
        x = norm.after(pending, residual)
        if self.small_batch is not None and x.shape[0] <= self.small_batch.max_tokens:
            return self.small_batch.add_to(residual, x)
        ids, weights = self.gate(x)
        for step in self.steps:
            step(ids, weights)
        out = self.route(x, ids, weights)
        return out if self.shared is None else self.shared.add_to(out, x)

    def finish_loading(self) -> None:
        self.executor.finish_loading()

    def warm_up(self) -> None:
        """Compile what is compiled at the first call. The weights are there."""
        self.executor.warm_up()
        if self.small_batch is not None:
            self.small_batch.warm_up()

    def route(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Compute x [T, hidden] by its selected experts [T, k], on any rank; T may be 0."""
        dispatched = self.dispatcher.prepare(x, ids, weights)
        return self.dispatcher.finalize(dispatched, self._computed(dispatched))

    def _computed(self, dispatched: Dispatched) -> Tensor:
        """The weighted sums of this rank's experts, [T', hidden]."""
        rows, most = dispatched.x.shape[0], self.dispatcher.max_rows
        if rows == 0:
            return dispatched.x
        if most is None or rows <= most:
            return self.executor.execute(dispatched)
        out = torch.empty_like(dispatched.x)
        for start in range(0, rows, most):
            part = dispatched.part(start, start + most)
            out[start : start + most] = self.executor.execute(part)
        return out

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        names = self.config.names
        path = names.path(path.removesuffix("mlp."))
        yield from self.gate.checkpoint_targets(f"{path}{names.gate}.")
        yield from weight_targets(self.experts, f"{path}{names.experts}.")
        if self.shared is not None:
            yield from self.shared.checkpoint_targets(path)


def _way_to_experts(
    index: int, config: MoeConfig, options: LayerOptions
) -> tuple[Dispatcher, tuple[SelectionStep, ...]]:
    hooks = options.experts
    if hooks is not None:
        return hooks.dispatcher(index, config), hooks.steps(index, config)
    return dispatcher_without_hooks(config, options), ()


def dispatcher_without_hooks(config: MoeConfig, options: LayerOptions) -> Dispatcher:
    """Return the dispatcher for experts that are local, or sharded over tensor-parallel ranks.

    Used when no ExpertHooks are given.
    """
    ranks = options.tensor_parallel
    if ranks.size > 1:
        return DividedDispatcher(config.num_experts, ranks, options.device)
    return LocalDispatcher(config.num_experts)


class _Experts(nn.Module):
    """The stacked weights, under their names in the checkpoint."""

    def __init__(self, config: MoeConfig, local: tuple[int, ...], options: LayerOptions) -> None:
        super().__init__()
        hidden, inner, names = config.hidden_size, config.intermediate_size, config.names
        options = options.inside(names.experts)
        parts, down = {names.gate_proj: inner, names.up_proj: inner}, {names.down_proj: hidden}
        experts, stored = config.num_experts, _stored(config)
        kept = weight_format(options, _tensors(config))
        self.gate_up = StackedLinearWeights(hidden, parts, experts, options, local, stored, kept)
        self.down = StackedLinearWeights(inner, down, experts, options, local, stored, kept)


def _tensors(config: MoeConfig) -> tuple[str, ...]:
    """The names of an expert's tensors."""
    names = config.names
    gate_up = (names.gate_up_proj,) if names.gate_up_proj else (names.gate_proj, names.up_proj)
    return (*gate_up, names.down_proj)


def _stored(config: MoeConfig) -> StoredExperts:
    """Which tensors of an expert a checkpoint has."""
    names = config.names
    if not names.gate_up_proj:
        return StoredExperts(bias=config.expert_bias)
    parts, groups = (names.gate_proj, names.up_proj), config.intermediate_size
    alternate = Interleaved(names.gate_up_proj, parts, groups)
    return StoredExperts((alternate,), transposed=True, bias=config.expert_bias)


def expert_context(
    config: MoeConfig, options: LayerOptions, dispatcher: Dispatcher
) -> ExpertContext:
    """The context from which a block's executor is chosen; `options` are the block's."""
    return ExpertContext(
        config=config,
        capabilities=options.capabilities,
        dtype=options.dtype,
        weights=weight_format(options.inside(config.names.experts), _tensors(config)),
        dispatcher=dispatcher.name,
        slots=len(dispatcher.local_experts),
    )

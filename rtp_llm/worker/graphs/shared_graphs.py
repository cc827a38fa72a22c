# SPDX-License-Identifier: Apache-2.0
"""Graphs of ranks that share experts: all ranks replay the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.worker.graphs.step_graphs import Captured, StepGraphs

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.inputs.graph_inputs import GraphInputs
    from rtp_llm.worker.inputs.graph_sizes import GraphSize
    from rtp_llm.worker.plan.step_plan import StepPlan


class Ranks(Protocol):
    """The other ranks, as a capture needs them."""

    def padded(self, rows: int, tokens: Tensor, alone: bool) -> AbstractContextManager[None]:
        """A context for a step with this many rows on every rank.

        The first `tokens` (int32 [1]) rows of this rank hold a token. `alone`: the other ranks take
        no part.
        """

    def all_can(self, can: bool) -> bool:
        """Whether every rank can; all of them ask at the same time."""


class SharedGraphs(StepGraphs):
    """Every rank calls `capture_next` and `agree` equally often and with the same numbers.

    So all ranks have captured the same sizes and choose the same one, in which each rank has room
    for as many tokens as the fullest rank has. Whatever may fail on one rank does not involve the
    others: steps are tried alone, and no message is sent while they are captured.
    """

    def __init__(
        self,
        step: Callable[[ForwardBatch], Tensor],
        inputs: GraphInputs,
        device: Device,
        sizes: Sequence[GraphSize],
        ranks: Ranks,
    ) -> None:
        """See StepGraphs; `step` is the step of this rank."""
        super().__init__(self._padded, inputs, device, sizes)
        self._layers, self._ranks = step, ranks
        self._agreed: GraphSize | None = None

    def agree(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether all ranks replay the next step, which has at most these numbers on any rank."""
        self._agreed = self._choose(tokens, sequences, longest)
        return self._agreed is not None

    def replay_empty(self) -> None:
        """Replay the agreed size without tokens: only the local experts have something to do."""
        assert self._agreed is not None
        self._inputs.clear()
        self._captured[self._agreed].graph.replay()

    def discard(self) -> None:
        """Forget all graphs: a communicator ends only after those that use it."""
        self._device.synchronize()
        self._captured.clear()
        self._sizes, self._waiting = [], []

    def _size_of(self, batch: StepPlan) -> GraphSize | None:
        return self._agreed

    def _padded(self, batch: ForwardBatch, alone: bool = False) -> Tensor:
        with self._ranks.padded(len(batch.token_ids), batch.cu_seqlens_q[-1:], alone):
            return self._layers(batch)

    def _rehearse(self, size: GraphSize) -> None:
        self._padded(self._inputs.batch(size), alone=True)

    def _try(self, size: GraphSize) -> tuple[Captured | None, str]:
        made, problem = super()._try(size)
        if self._ranks.all_can(made is not None):
            return made, ""
        return None, problem or "another rank has none for a graph"

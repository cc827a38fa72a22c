# SPDX-License-Identifier: Apache-2.0
"""A worker that has experts for the workers of other engines, and they for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.worker import StepHandle, Worker

if TYPE_CHECKING:
    from rtp_llm.engine.ranks.rank_steps import RankSteps
    from rtp_llm.worker.plan.step_plan import StepPlan


class RankWorker(Worker):
    """Every step begins when all ranks have agreed on it; those without a plan take part."""

    def __init__(self, local: Worker, ranks: RankSteps) -> None:
        self._local, self._ranks = local, ranks

    @property
    def overlaps(self) -> bool:
        return self._local.overlaps

    @property
    def keeps_sequences(self) -> bool:
        return self._local.keeps_sequences

    def add(self, sequences: NewSequences) -> None:
        self._local.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        self._local.fork(forked)

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        self._local.end(ids, aborted=aborted)

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if not self._ranks.begin(plan, more):
            return None
        handle = self._local.execute(plan)
        self._ranks.end()
        return handle

    def release_plan(self) -> None:
        self._local.release_plan()

    @property
    def awake(self) -> bool:
        return self._ranks.awake

    @property
    def stopped(self) -> bool:
        return self._ranks.stopped


class FollowingWorker(RankWorker):
    """On another tensor-parallel rank than the first of an engine, which agrees for all of them."""

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        return self._local.execute(plan, more=more)

    def step_with_others(self, tokens: int, *, computes: bool) -> None:
        self._ranks.follow(tokens, computes)

# SPDX-License-Identifier: Apache-2.0
"""The worker of rank 0: the processes of the other ranks execute whatever it executes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.plan.step_plan import StepPlan
from rtp_llm.worker.ranks.rank_failure import WorkerLostError
from rtp_llm.worker.ranks.rank_messages import ConnectorMessage, Ended, Received, ToRank
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.shared_memory import IDLE, MESSAGES, PART, PLAN, SAMPLE
from rtp_llm.worker.ranks.step_board import StepBoard
from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch, Scheduler
    from rtp_llm.worker.ranks.other_nodes import OtherNodes

# A collective may report a dead rank before the kernel does.
_NEWS_SECONDS = 1.5


class RanksWorker(Worker):
    """Publishes each plan of ``scheduler``, then executes it with ``local``.

    The scheduler must have been made with ``shared_batch``. Ranks of other machines get a copy of
    each plan through ``nodes``. Rank 0 answers alone. A rank that is lost, in whatever call, is a
    WorkerLostError.
    """

    def __init__(
        self,
        local: Worker,
        processes: RankProcesses,
        scheduler: Scheduler,
        *,
        timeout: float,
        in_place: bool,
        stages: int = 1,
        spin: int | None = None,
        nodes: OtherNodes | None = None,
    ) -> None:
        """``timeout``: seconds within which a rank has to begin a step. ``in_place``: ``local``
        writes into the plan, because the device uses host memory. ``stages`` of a pipeline, in
        which ranks take plans ahead of their work. ``spin`` in microseconds; None: by the number of
        cores."""
        self._local, self._rank_failure, self._nodes = local, processes.rank_failure, nodes
        self._in_place = in_place and stages == 1  # the others copy plans at once
        self._notified = False  # something since the last step
        self._agreed = 0  # tokens of engines that step together
        # Ranks that sample together do it at the same place among their steps.
        self._announces_sampling = stages > 1 and local.in_flight > 1
        layout, (descriptor, _) = PlanLayout.of(scheduler), scheduler.shared_memory
        self._board = StepBoard(
            processes, layout, descriptor, local.in_flight, timeout=timeout, spin=spin
        )
        if nodes is not None:
            nodes.hand_over(layout, descriptor, local.in_flight)
        self._scheduler = scheduler

    @property
    def overlaps(self) -> bool:
        return self._local.overlaps

    @property
    def in_flight(self) -> int:
        return self._local.in_flight

    @property
    def keeps_sequences(self) -> bool:
        return self._local.keeps_sequences

    def add(self, sequences: NewSequences) -> None:
        # Objects of this process see the logits of all ranks here.
        self._notify(replace(sequences, processors=()))
        self._local.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        self._notify(forked)
        self._local.fork(forked)

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        ids = tuple(ids)
        if ids:
            self._notify(Ended(ids, aborted))
        self._local.end(ids, aborted=aborted)

    def takes_draft_state(self, state: bytes) -> bool:
        return self._local.takes_draft_state(state)

    def receive(self, sequence: int, slot: int, token: int, draft_state: bytes) -> None:
        self._notify(Received(sequence, slot, token, draft_state))
        self._local.receive(sequence, slot, token, draft_state)

    # -- connectors on the other ranks -------------------------------------------------------------

    @property
    def processes(self) -> RankProcesses:
        """The processes of the other ranks."""
        return self._board.processes

    def send_to_connectors(self, message: Any) -> None:
        """Send ``message`` to the WorkerConnector of all other ranks, which receive it before the
        next step, or with `deliver`."""
        self._notify(ConnectorMessage(message))

    def deliver(self) -> None:
        """Let the ranks receive what was sent since the last step."""
        if self._notified:
            with self.watched():
                self._publish(None, MESSAGES)
                self._board.await_taken()

    # -- steps -------------------------------------------------------------------------------------

    def _notify(self, message: ToRank) -> None:
        self._board.notify(message)
        if self._nodes is not None:
            # Prefill and decode workers, which send the others, are on one machine.
            assert isinstance(message, (NewSequences, ForkedSequences, Ended))
            self._nodes.notify(message)
        self._notified = True

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        with self.watched():
            self._publish(plan)
            if self._in_place:  # the others' copies come first
                self._board.await_taken()
            handle = self._local.execute(plan, more=more)
            self._board.await_taken()
        return None if handle is None else _RanksStep(self, handle)

    def step_with_others(self, tokens: int, *, computes: bool) -> None:
        """Let the other ranks step too; the following plan tells them, or there is none."""
        self._agreed = tokens
        if not computes:
            with self.watched():
                self._publish(None, PART)
                self._board.await_taken()

    def announce_sampling(self) -> None:
        """Notify the other ranks that the oldest unsampled step is now sampled."""
        if self._announces_sampling:
            self._publish(None, SAMPLE)
            self._board.await_taken()

    def _publish(self, plan: StepPlan | None, kind: int = PLAN) -> None:
        agreed, self._agreed, self._notified = self._agreed, 0, False
        # Whichever plan this is, the scheduler made it.
        self._board.publish(None if plan is None else cast("Batch", plan), kind, agreed)
        if self._nodes is not None:
            self._nodes.publish(self._board.numbers, kind)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which errors caused by the end of another rank say so."""
        try:
            yield
        except WorkerLostError:
            raise
        except RuntimeError:
            self._rank_failure.check(_NEWS_SECONDS)
            raise

    def release_plan(self) -> None:
        self._local.release_plan()

    @property
    def has_idle_work(self) -> bool:
        return self._local.has_idle_work

    def work_idle(self) -> None:
        if self._local.has_idle_work:
            with self.watched():
                self._publish(None, IDLE)
                self._local.work_idle()
                self._board.await_taken()


class _RanksStep:
    def __init__(self, worker: RanksWorker, handle: StepHandle) -> None:
        self._worker, self._handle = worker, handle

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        with self._worker.watched():
            self._worker.announce_sampling()
            self._handle.sample(previous)

    def read(self) -> StepOutputs:
        with self._worker.watched():
            return self._handle.read()

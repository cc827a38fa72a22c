"""The worker of rank 0: what it executes, the processes of the other ranks execute too."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan import StepPlan
from rtp_llm.worker.shared.memory import (
    IDLE,
    MESSAGES,
    PLAN,
    SAMPLE,
    StepMemory,
    default_spin,
)
from rtp_llm.worker.shared.messages import Beside, Ended, Received, Steps
from rtp_llm.worker.shared.plan import PlanLayout
from rtp_llm.worker.shared.rank_processes import RankProcesses, WorkerLostError
from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch, Scheduler

_LOOK_SECONDS = 0.1  # between two looks whether the processes live
# A collective may tell of a dead rank before the kernel does.
_NEWS_SECONDS = 1.5


class RanksWorker(Worker):
    """Publishes each plan of ``scheduler``, then executes it with ``local``.

    The scheduler must have been made with ``shared_batch``. A step costs one counter to hand over,
    whatever the number of ranks: nothing is serialised but what concerns whole requests. Rank 0
    answers alone. A rank that is lost, in whatever call, is a WorkerLostError.
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
    ) -> None:
        """``timeout``: seconds that a rank may take to begin a step; ``in_place``: ``local`` writes
        into the plan, as where host memory is the device's; ``stages``: of a pipeline, whose ranks
        take plans ahead of their work; ``spin``: microseconds, None: by the
        number of cores."""
        self._local, self._processes, self._timeout = local, processes, timeout
        self._in_place = in_place and stages == 1  # the others copy plans at once
        others = len(processes.pids)
        spin = default_spin(others + 1) if spin is None else spin
        descriptor = os.memfd_create("rtp_llm_steps")
        self._memory = StepMemory(descriptor, others, spin)
        self._sent = self._delivered = 0
        # Ranks that sample together do it at the same place among their steps.
        self._tells_of_sampling = stages > 1 and local.in_flight > 1
        layout = PlanLayout.of(scheduler)
        processes.hand_over(
            Steps(layout, others, spin, local.in_flight), [scheduler.shared_memory[0], descriptor]
        )
        os.close(descriptor)
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
        self._tell(replace(sequences, processors=()))
        self._local.add(sequences)

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        ids = tuple(ids)
        if ids:
            self._tell(Ended(ids, aborted))
        self._local.end(ids, aborted=aborted)

    def takes_draft_state(self, state: bytes) -> bool:
        return self._local.takes_draft_state(state)

    def receive(self, sequence: int, slot: int, token: int, draft_state: bytes) -> None:
        self._tell(Received(sequence, slot, token, draft_state))
        self._local.receive(sequence, slot, token, draft_state)

    # -- what the other ranks do beside steps ------------------------------------------------------

    @property
    def processes(self) -> RankProcesses:
        """Of the other ranks."""
        return self._processes

    def tell_beside(self, message: Any) -> None:
        """Say something to what they do beside steps; they hear it before the next step, or
        `deliver`."""
        self._tell(Beside(message))

    def deliver(self) -> None:
        """Let them hear what was said since the last step."""
        if self._sent != self._delivered:
            with self.watched():
                self._publish(None, MESSAGES)
                self._await_taken()

    # -- steps -------------------------------------------------------------------------------------

    def _tell(self, message: NewSequences | Ended | Received | Beside) -> None:
        self._processes.tell(message)
        self._sent += 1

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        with self.watched():
            self._publish(plan)
            if self._in_place:  # the others' copies come first
                self._await_taken()
            handle = self._local.execute(plan, more=more)
            self._await_taken()
        return None if handle is None else _RanksStep(self, handle)

    def tell_of_sampling(self) -> None:
        """The oldest step that is not sampled is so now."""
        if self._tells_of_sampling:
            self._publish(None, SAMPLE)
            self._await_taken()

    def _publish(self, plan: StepPlan | None, kind: int = PLAN) -> None:
        channel, numbers = self._memory.channel, self._memory.numbers
        numbers[:] = self._sent, 0 if plan is None else plan.num_outputs, kind
        self._delivered = self._sent
        # Whichever plan this is, the scheduler made it.
        channel.publish(cast("Batch", plan) if plan is not None else None)

    def _await_taken(self) -> None:
        channel = self._memory.channel
        deadline = time.monotonic() + self._timeout
        while not channel.await_taken(channel.published, _LOOK_SECONDS):
            self._processes.check()
            if time.monotonic() > deadline:
                raise WorkerLostError(f"a rank has not begun a step for {self._timeout:.15g} s")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, an error that another rank's end brought about says so."""
        try:
            yield
        except WorkerLostError:
            raise
        except RuntimeError:
            self._processes.check(_NEWS_SECONDS)
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
                self._await_taken()


class _RanksStep:
    def __init__(self, worker: RanksWorker, handle: StepHandle) -> None:
        self._worker, self._handle = worker, handle

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        with self._worker.watched():
            self._worker.tell_of_sampling()
            self._handle.sample(previous)

    def read(self) -> StepOutputs:
        with self._worker.watched():
            return self._handle.read()

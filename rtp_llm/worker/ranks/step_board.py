# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of one machine find each step, whoever publishes it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.ranks.rank_failure import WorkerLostError
from rtp_llm.worker.ranks.rank_messages import Steps, ToRank
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.shared_memory import PLAN, StepMemory, default_spin

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch

_LOOK_SECONDS = 0.1  # between two checks that the processes are alive


class StepBoard:
    """Passes steps, and messages about whole requests, to ``processes`` in one order.

    Passing a step costs one counter, whatever the number of ranks: only messages are serialised.
    """

    def __init__(
        self,
        processes: RankProcesses,
        layout: PlanLayout,
        plan_descriptor: int,
        in_flight: int,
        *,
        timeout: float,
        spin: int | None = None,
    ) -> None:
        """``plan_descriptor`` is the file descriptor of the memory that holds plans; ``timeout``:
        seconds within which a rank has to begin a step; ``spin``: microseconds, None: by the
        number of cores."""
        self.processes, self._timeout = processes, timeout
        count = len(processes.pids)
        spin = default_spin(count + 1) if spin is None else spin
        descriptor = os.memfd_create("rtp_llm_steps")
        self._memory = StepMemory(descriptor, count, spin)
        self._sent = 0
        steps = Steps(layout, count, spin, in_flight)
        processes.hand_over(steps, [plan_descriptor, descriptor])
        os.close(descriptor)

    def notify(self, message: ToRank) -> None:
        """Send ``message`` to all ranks, which receive it before the next published step."""
        self.processes.notify(message)
        self._sent += 1

    def publish(
        self,
        plan: Batch | Sequence[int] | None,
        kind: int = PLAN,
        agreed: int = 0,
    ) -> None:
        """Publish the plan in the memory, or its numbers; None for a step without a plan. For the
        kind and the ``agreed`` tokens see StepMemory. The previous step must have been taken."""
        self._memory.numbers[:] = self._sent, kind, agreed
        if plan is None or not isinstance(plan, Sequence):
            self._memory.channel.publish(plan)
        else:
            self._memory.channel.publish_numbers(plan)

    def numbers(self, count: int) -> list[int]:
        """The numbers of the published plan: see StepChannel."""
        return self._memory.channel.numbers(count)

    def await_taken(self) -> None:
        """Wait until all ranks have a copy of the plan. Raises WorkerLostError if one fails."""
        channel = self._memory.channel
        deadline = time.monotonic() + self._timeout
        while not channel.await_taken(channel.published, _LOOK_SECONDS):
            self.processes.check()
            if time.monotonic() > deadline:
                raise WorkerLostError(f"rank stalled: no step started for {self._timeout:.15g} s")

# SPDX-License-Identifier: Apache-2.0
"""Cycles of the asynchronous writer, one a step: the copies of a step may outlive it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import CacheStoreAsyncWriter
    from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings

# A writer has one cycle: with two of them the copies of a step go on while the next one computes.
_WRITERS = 2


@dataclass
class Cycle:
    """A step's; ``error``: the first thing that went wrong, seen when it has ended."""

    writer: CacheStoreAsyncWriter
    sequences: list[int]
    error: Exception | None = None

    def submit(self, task: Callable[[], object], ready: Callable[[], object] | None) -> None:
        """Queue a task; after a full queue nothing more, as the prompts have failed then."""
        if self.error is not None:
            return
        try:
            self.writer.submit(task, ready)
        except load_runtime().WriterQueueFullError as error:
            self.error = error

    def wait(self) -> None:
        """Until every task has ended; the writer is idle then, whatever happened."""
        try:
            self.writer.wait_all_done()
        except Exception as error:
            self.error = self.error or error


class WriteCycles:
    """Opens a cycle for a step's layers, and ends it when its tasks have ended or room is needed.

    One thread steps; ``ended`` is called with each cycle in the order of steps.
    """

    def __init__(
        self,
        settings: WriterSettings,
        before_task: Callable[[], object],
        ended: Callable[[Cycle], None],
    ) -> None:
        self._writers = [
            load_runtime().CacheStoreAsyncWriter(
                num_threads=settings.threads,
                queue_size=settings.queue_size,
                when_full=settings.when_full,
                before_task=before_task,
            )
            for _ in range(_WRITERS)
        ]
        self._idle = list(self._writers)
        self._open: deque[Cycle] = deque()
        self._ended = ended

    @property
    def in_progress(self) -> int:
        """The number of cycles that have not ended."""
        return len(self._open)

    @property
    def queued(self) -> int:
        """Tasks that no thread has taken yet."""
        return sum(writer.queued for writer in self._writers)

    def begin(self, sequences: list[int]) -> Cycle:
        """A cycle for the layers of a step; its tasks go on afterwards.

        Waits when as many steps are under way as there are writers.
        """
        if not self._idle:
            self._end_first()
        cycle = Cycle(self._idle.pop(), sequences)
        cycle.writer.init()
        self._open.append(cycle)
        return cycle

    def settle(self) -> None:
        """End what needs no waiting."""
        while self._open and not self._open[0].writer.pending:
            self._end_first()

    def finish(self) -> None:
        """Wait for all that is under way."""
        while self._open:
            self._end_first()

    def close(self) -> None:
        """End the threads; what is queued is dropped."""
        for writer in self._writers:
            writer.shutdown(drain=False)

    def _end_first(self) -> None:
        cycle = self._open.popleft()
        cycle.wait()
        self._idle.append(cycle.writer)
        self._ended(cycle)

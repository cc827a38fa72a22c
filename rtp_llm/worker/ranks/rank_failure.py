# SPDX-License-Identifier: Apache-2.0
"""What the process of rank 0 knows about failures of other ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WorkerLostError(RuntimeError):
    """A rank's process has ended or failed; the message says which one and why."""


class RankFailure:
    """The first failure among the processes that compute one model together; thread-safe."""

    def __init__(self, on_rank_failure: Callable[[str], None] | None = None) -> None:
        """``on_rank_failure`` is called once with the reason, in the thread that noticed it."""
        self._on_rank_failure = on_rank_failure
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._happened = threading.Event()
        self._expected = False

    @property
    def happened(self) -> bool:
        """Whether a rank has failed."""
        return self._happened.is_set()

    def report(self, reason: str) -> None:
        """Record a failed rank. Only the first reason is kept; later ones are consequences."""
        with self._lock:
            if self._expected or self._reason is not None:
                return
            self._reason = reason
        self._happened.set()
        if self._on_rank_failure is not None:
            self._on_rank_failure(reason)

    def expect(self) -> None:
        """Expect processes to end from now on: this is a shutdown."""
        with self._lock:
            self._expected = True

    def check(self, seconds: float = 0.0) -> None:
        """Raise WorkerLostError if a rank has failed, or fails within ``seconds``."""
        if self._happened.wait(seconds):
            raise WorkerLostError(self._reason)

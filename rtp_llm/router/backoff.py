# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: decides when a failing worker is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]

# Consecutive failures after which a worker is left out.
MAX_FAILURES = 3
# For how long: initially, and at most. The time doubles with each trial that fails.
FIRST_SECONDS = 1.0
MAX_SECONDS = 60.0


class Backoff:
    """Closed: requests go to the worker. Open: none do. Half open: one does, as a trial."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        """Consecutive failures since the last complete answer."""
        self._clock = clock
        self._seconds = FIRST_SECONDS
        self._until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        """The current state of the breaker."""
        if self._until is None:
            return "closed"
        return "open" if self.seconds_left > 0 else "half_open"

    @property
    def seconds_left(self) -> float:
        """Seconds until a trial is allowed; 0 unless it is open."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    @property
    def admits(self) -> bool:
        """Whether a request may go there now."""
        return self.state == "closed" or (self.state == "half_open" and not self._trying)

    def begin(self) -> bool:
        """Note that a request is sent; returns whether it is the trial, to be passed to ``end``."""
        trial = self.state == "half_open"
        self._trying = self._trying or trial
        return trial

    def answered(self) -> None:
        """The worker began to answer: other requests may follow, but the failure count is kept."""
        if self.state == "half_open":
            self._until, self.failures = None, MAX_FAILURES - 1

    def succeeded(self) -> None:
        """Note a complete answer; resets the failure count."""
        if self._until is None:
            self.failures, self._seconds = 0, FIRST_SECONDS

    def failed(self) -> None:
        """Note a missing or partial answer. Failures while the worker is left out do not count."""
        if self.state == "open":
            return
        self.failures += 1
        if self.failures < MAX_FAILURES:
            return
        self._until = self._clock() + self._seconds
        self._seconds = min(2 * self._seconds, MAX_SECONDS)

    def end(self, trial: bool) -> None:
        """Note the end of the request that ``begin`` was called for."""
        if trial:
            self._trying = False

# SPDX-License-Identifier: Apache-2.0
"""When a worker that keeps failing is asked again: a circuit breaker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]

# So many failures in a row, and it is left out.
MOST_FAILURES = 3
# For how long, the first time and at most; each time doubles it.
FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Backoff:
    """Closed: requests go to the worker. Open: none does. Half open: one does, to see."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        """In a row, up to the last answer that was complete."""
        self._clock = clock
        self._seconds = FIRST_SECONDS
        self._until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        """What it is now."""
        if self._until is None:
            return "closed"
        return "open" if self.seconds_left > 0 else "half_open"

    @property
    def seconds_left(self) -> float:
        """Until it may be tried; 0 unless it is open."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    @property
    def admits(self) -> bool:
        """Whether a request may go there now."""
        return self.state == "closed" or (self.state == "half_open" and not self._trying)

    def begin(self) -> bool:
        """A request goes there. Returns whether it is the trial, for ``end``."""
        trial = self.state == "half_open"
        self._trying = self._trying or trial
        return trial

    def answered(self) -> None:
        """The worker said something: others may follow, but the next failure counts as before."""
        if self.state == "half_open":
            self._until, self.failures = None, MOST_FAILURES - 1

    def succeeded(self) -> None:
        """An answer was complete."""
        if self._until is None:
            self.failures, self._seconds = 0, FIRST_SECONDS

    def failed(self) -> None:
        """No answer came, or half of one. What fails while it is left out tells nothing new."""
        if self.state == "open":
            return
        self.failures += 1
        if self.failures < MOST_FAILURES:
            return
        self._until = self._clock() + self._seconds
        self._seconds = min(2 * self._seconds, MOST_SECONDS)

    def end(self, trial: bool) -> None:
        """The request that ``begin`` was called for is over."""
        if trial:
            self._trying = False

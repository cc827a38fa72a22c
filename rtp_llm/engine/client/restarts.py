# SPDX-License-Identifier: Apache-2.0
"""How often the processes of an engine may be restarted, and how long each restart waits."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 600.0
# Before the second restart, and the most before a later one; each waits twice as long as the last.
# The first comes at once.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 30.0


class Restarts:
    """The restarts so far and those that are left; all processes of an engine share it."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: restarts within WINDOW_SECONDS."""
        self.limit = limit
        self.total = 0
        """Restarts so far."""
        self.replayed = 0
        """Requests that were computed again."""
        self._clock = clock
        self._stopped = False
        self._recent: list[float] = []

    @property
    def allowed(self) -> bool:
        """One more may be taken."""
        earliest = self._clock() - WINDOW_SECONDS
        self._recent = [each for each in self._recent if each > earliest]
        return not self._stopped and len(self._recent) < self.limit

    def stop(self) -> None:
        """Allow no more."""
        self._stopped = True

    def take(self) -> tuple[int, float]:
        """Count a restart: its number within the window, and the seconds to wait before it."""
        self._recent.append(self._clock())
        self.total += 1
        number = len(self._recent)
        if number == 1:
            return number, 0.0
        doubled = FIRST_DELAY_SECONDS * 2 ** min(number - 2, 30)
        return number, min(LONGEST_DELAY_SECONDS, doubled)

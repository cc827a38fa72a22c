# SPDX-License-Identifier: Apache-2.0
"""Log lines that unknown peers can cause: a limited number, and then a count of the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_logger = logging.getLogger("rtp_llm.engine")
MAX_LINES = 10
WINDOW_SECONDS = 10.0


class RateLimitedLog:
    """At most MAX_LINES warnings in each WINDOW_SECONDS. Belongs to one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lines = 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, unless there were too many recently."""
        self.tick()
        self._lines += 1
        if self._lines <= MAX_LINES:
            _logger.warning(text, *arguments)

    def tick(self) -> None:
        """Call this regularly: it reports omitted lines once their window is over."""
        if self._clock() < self._began + WINDOW_SECONDS:
            return
        if self._lines > MAX_LINES:
            left_out = self._lines - MAX_LINES
            _logger.warning("%d more lines about connections were left out", left_out)
        self._began, self._lines = self._clock(), 0

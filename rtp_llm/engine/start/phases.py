# SPDX-License-Identifier: Apache-2.0
"""How long the phases of a start take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Phases:
    """Phases follow one another; the first begins when this is made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._last = clock()
        self._seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """End the present phase, which was `name`, and begin the next."""
        now = self._clock()
        self._seconds[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the beginning to the end of the last phase."""
        return self._last - self._began

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self._seconds.items())

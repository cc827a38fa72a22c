# SPDX-License-Identifier: Apache-2.0
"""What waits for consumers that have fallen far behind, and its end."""

from __future__ import annotations

from collections.abc import Callable

# Counted are tokens and their alternatives: about 40 bytes each, and 110 with log-probabilities.
MAX_PER_REQUEST = 2**16
MAX_IN_ALL = 2**20


class Backlog:
    """Of the requests of one engine client. ``stop`` ends a request of this number.

    A stream reports itself when it is at least 64 tokens behind, and again after as many more.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self.total = 0
        self._units: dict[int, int] = {}
        self._stop = stop

    def note(self, request_id: int, units: int) -> None:
        """So much waits of a request; it, or the one furthest behind, is stopped for it."""
        self.total += units - self._units.get(request_id, 0)
        self._units[request_id] = units
        if units > MAX_PER_REQUEST:
            self._stop(request_id)
        elif self.total > MAX_IN_ALL:
            self._stop(max(self._units, key=self._units.__getitem__))

    def forget(self, request_id: int) -> None:
        """Nothing waits of it any more."""
        self.total -= self._units.pop(request_id, 0)

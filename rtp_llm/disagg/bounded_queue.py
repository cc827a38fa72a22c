# SPDX-License-Identifier: Apache-2.0
"""A queue from what receives messages to the one thread that handles them, with bounds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")

# Bounds of one sender; it is not read on before its items were taken.
MOST_WAITING = 4096
MOST_WAITING_BYTES = 96 * 2**20


class Sender(Protocol):
    """Where items come from."""

    def pause(self) -> None:
        """From ``put``: put no more before ``resume``."""

    def resume(self) -> None:
        """Go on; any thread."""


class BoundedQueue(Generic[Item]):
    """First in, first out. ``put`` pauses a sender whose queued items are over the bounds."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """``wake`` is called after each item."""
        self._wake = wake
        self._items: list[Item] = []
        self._counts: Counter[Sender] = Counter()  # of them
        self._bytes: Counter[Sender] = Counter()
        self._paused: set[Sender] = set()
        self._changed = threading.Condition()  # guards all of these

    def put(self, item: Item, sender: Sender | None = None, size: int = 0) -> None:
        """Queue an item of ``size`` bytes; pause its ``sender`` when that is over the bounds."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            self._wake()
            if sender is not None:
                self._counts[sender] += 1
                self._bytes[sender] += size
                if not self._has_room(sender):
                    self._paused.add(sender)
                    sender.pause()

    def take(self, patience: float | None = 0.0) -> list[Item]:
        """All items; waits ``patience`` seconds for the first one, None: as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._items, patience)
            taken, self._items = self._items, []
            self._counts.clear()
            self._bytes.clear()
            for sender in self._paused:
                sender.resume()
            self._paused.clear()
        return taken

    def _has_room(self, sender: Sender) -> bool:
        return self._counts[sender] <= MOST_WAITING and self._bytes[sender] <= MOST_WAITING_BYTES

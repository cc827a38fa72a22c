"""A queue from threads that receive messages to the one thread that handles them, with bounds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Bounds of one sender; it is not read on before its items were taken.
MOST_WAITING = 4096
MOST_WAITING_BYTES = 96 * 2**20


class BoundedQueue(Generic[Item]):
    """First in, first out. ``put`` blocks a sender whose queued items are over the bounds."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """``wake`` is called after each item."""
        self._wake = wake
        self._closed = False
        self._items: list[Item] = []
        self._counts: Counter[Hashable] = Counter()  # of them, by sender
        self._bytes: Counter[Hashable] = Counter()
        self._changed = threading.Condition()  # guards all of these

    def put(self, item: Item, sender: Hashable = None, size: int = 0) -> None:
        """Queue an item of ``size`` bytes; block while its ``sender`` is over the bounds (without a
        sender: never)."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            self._wake()
            if sender is not None:
                self._counts[sender] += 1
                self._bytes[sender] += size
                self._changed.wait_for(lambda: self._closed or self._has_room(sender))

    def take(self, patience: float | None = 0.0) -> list[Item]:
        """All items; waits ``patience`` seconds for the first one, None: as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._items, patience)
            taken, self._items = self._items, []
            self._counts.clear()
            self._bytes.clear()
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Release every sender that is blocked."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self, sender: Hashable) -> bool:
        return self._counts[sender] <= MOST_WAITING and self._bytes[sender] <= MOST_WAITING_BYTES

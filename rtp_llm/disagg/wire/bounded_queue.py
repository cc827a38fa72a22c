# SPDX-License-Identifier: Apache-2.0
"""A bounded queue from message receivers to the one thread that handles the messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")

# Bounds for one sender; beyond them nothing is read from it until its items are taken.
MAX_WAITING = 4096
MAX_WAITING_BYTES = 96 * 2**20


class Sender(Protocol):
    """A source of items that can be paused."""

    def pause(self) -> None:
        """Called by ``put``: put nothing more before ``resume``."""

    def resume(self) -> None:
        """Continue to put items; may be called by any thread."""


class BoundedQueue(Generic[Item]):
    """First in, first out. ``put`` pauses a sender if its queued items exceed the bounds."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """``wake`` is called after each item."""
        self._wake = wake
        self._items: list[Item] = []
        self._counts: Counter[Sender] = Counter()  # of them
        self._bytes: Counter[Sender] = Counter()
        self._paused: set[Sender] = set()
        self._changed = threading.Condition()  # guards all of these

    def put(self, item: Item, sender: Sender | None = None, size: int = 0) -> None:
        """Queue an item of ``size`` bytes; pause its ``sender`` if that exceeds the bounds."""
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

    def take(self, timeout: float | None = 0.0) -> list[Item]:
        """Take all items; waits ``timeout`` seconds for the first one, None: without a limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._items, timeout)
            taken, self._items = self._items, []
            self._counts.clear()
            self._bytes.clear()
            for sender in self._paused:
                sender.resume()
            self._paused.clear()
        return taken

    def _has_room(self, sender: Sender) -> bool:
        return self._counts[sender] <= MAX_WAITING and self._bytes[sender] <= MAX_WAITING_BYTES

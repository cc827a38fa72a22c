"""Where threads that hear others leave what was said, for the one thread that deals with it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Letter = TypeVar("Letter")

# What of one sender may wait; it is not read on before that was taken.
MOST_WAITING = 4096
MOST_WAITING_BYTES = 96 * 2**20


class Mailbox(Generic[Letter]):
    """Letters in the order in which they came. Who leaves more than may wait has to wait itself."""

    def __init__(self, ring: Callable[[], None] = lambda: None) -> None:
        """``ring`` is called after each letter."""
        self._ring = ring
        self._closed = False
        self._letters: list[Letter] = []
        self._counts: Counter[Hashable] = Counter()  # of them, by sender
        self._bytes: Counter[Hashable] = Counter()
        self._changed = threading.Condition()  # guards all of these

    def leave(self, letter: Letter, sender: Hashable = None, size: int = 0) -> None:
        """A letter of so many bytes; returns when its ``sender`` has room for another one. Without
        a sender it returns at once."""
        with self._changed:
            self._letters.append(letter)
            self._changed.notify_all()
            self._ring()
            if sender is not None:
                self._counts[sender] += 1
                self._bytes[sender] += size
                self._changed.wait_for(lambda: self._closed or self._has_room(sender))

    def take(self, patience: float | None = 0.0) -> list[Letter]:
        """All of them; waits so many seconds for the first one, None: as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._letters, patience)
            taken, self._letters = self._letters, []
            self._counts.clear()
            self._bytes.clear()
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self, sender: Hashable) -> bool:
        return self._counts[sender] <= MOST_WAITING and self._bytes[sender] <= MOST_WAITING_BYTES

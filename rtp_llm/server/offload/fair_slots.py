# SPDX-License-Identifier: Apache-2.0
"""Slots that are shared fairly among clients."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rtp_llm.server.types.errors import ApiError, unavailable

# Limits on waiting bodies: total bytes, and number. Beyond them, the client with the largest share
# gets a 503 for one of its bodies.
MAX_WAITING_BYTES = 64 * 2**20
MAX_WAITING = 1024


@dataclass(order=True)
class _Waiting:
    """A waiting body; a client's shortest body is served first."""

    size: int
    number: int
    turn: asyncio.Future[None] = field(compare=False)


class FairSlots:
    """The client that holds the fewest slots is next; clients with equally many take turns.

    With several slots, no client holds all of them, so another client never waits for a whole
    queue, and waits for a slot only while two or more fill them all. Belongs to an event loop.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._most = max(1, slots - 1)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[_Waiting]] = {}  # ordered by when clients were last served
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def slot(self, client: str, size: int) -> AsyncIterator[None]:
        """Wait for a slot for a body of `size` bytes; raises ApiError 503 if the queue is full."""
        await self._take(client, size)
        try:
            yield
        finally:
            self._give_back(client)

    async def _take(self, client: str, size: int) -> None:
        if self._free == 0 or self._held[client] >= self._most:
            self._make_room(client, size)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = _Waiting(size, next(self._numbers), turn)
        heapq.heappush(self._waiting.setdefault(client, []), entry)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            self._remove(client, entry)
            if not turn.cancelled() and turn.exception() is None:
                self._give_back(client)
            raise

    def _give_back(self, client: str) -> None:
        self._free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            ready = [each for each in self._waiting if self._held[each] < self._most]
            if not ready:
                return
            client = min(ready, key=lambda each: self._held[each])
            entries = self._waiting.pop(client)
            turn = heapq.heappop(entries).turn
            if entries:
                self._waiting[client] = entries
            if not turn.done():  # it may just have been cancelled
                turn.set_result(None)
                self._free -= 1
                self._held[client] += 1

    def _remove(self, client: str, entry: _Waiting) -> None:
        entries = [each for each in self._waiting.get(client, ()) if each is not entry]
        heapq.heapify(entries)
        self._waiting[client] = entries
        if not entries:
            del self._waiting[client]

    def _make_room(self, client: str, size: int) -> None:
        """Make room in the queue; raises ApiError 503 if the client has the largest share."""
        while True:
            count = sum(map(len, self._waiting.values()))
            held = sum(map(_bytes, self._waiting.values()))
            if count < MAX_WAITING and held + size <= MAX_WAITING_BYTES:
                return
            error = unavailable(
                f"{count} requests of {held} bytes wait to be prepared; try again.", "overloaded"
            )
            shares = {each: _share(waiting) for each, waiting in self._waiting.items()}
            shares[client] = shares.get(client, 0.0) + _share_of(1, size)
            heaviest = max(shares, key=lambda each: shares[each])
            if heaviest == client:
                raise error
            self._refuse_last(heaviest, error)

    def _refuse_last(self, client: str, error: ApiError) -> None:
        last = max(self._waiting[client])
        self._remove(client, last)
        if not last.turn.done():
            last.turn.set_exception(error)


def _bytes(entries: list[_Waiting]) -> int:
    return sum(each.size for each in entries)


def _share(entries: list[_Waiting]) -> float:
    return _share_of(len(entries), _bytes(entries))


def _share_of(count: int, size: int) -> float:
    """A client's share of the queue."""
    return max(count / MAX_WAITING, size / MAX_WAITING_BYTES)

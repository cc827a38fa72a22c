# SPDX-License-Identifier: Apache-2.0
"""The events of a background response, which can be read from any event on."""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence

from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.protocols.responses.events import Event

# Events are compressed in blocks of this many bytes: a tenth of the size, in 0.2 ms.
_BLOCK_BYTES = 2**14
_END = b"\n\n"


class EventsLostError(Exception):
    """Events that a reader needs were dropped for lack of room."""


class EventLog:
    """A log with one writer and any number of waiting readers. Belongs to an event loop.

    `reserve`: reserves additional bytes, False if there is no room. From then on only the latest
    events are kept, for readers that keep up, and the response continues.
    """

    def __init__(self, reserve: Callable[[int], bool]) -> None:
        self._reserve = reserve
        self._firsts: list[int] = []
        self._blocks: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_first = self._tail_bytes = 0
        self._growth = asyncio.Event()
        self._ended = False
        self.whole = True
        """Nothing was lost."""
        self.size = 0
        """Number of reserved bytes."""

    def add(self, events: Sequence[Event]) -> None:
        """Append events, whose sequence numbers continue those of the previous ones."""
        for event in events:
            data = encode_events([event])
            self._tail.append(data)
            self._tail_bytes += len(data)
        if self._tail_bytes >= _BLOCK_BYTES:
            self._close_block()
        self._wake()

    def end(self) -> None:
        """Close the log: readers end after the last event."""
        self._ended = True
        self._close_block()
        self._wake()

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """Yield complete events, encoded, that follow the given sequence number.

        Raises EventsLostError.
        """
        at = number + 1
        while True:
            while at < self._count:
                data, at = self._read(at)
                yield data
            if self._ended:
                return
            await self._growth.wait()

    @property
    def _count(self) -> int:
        return self._tail_first + len(self._tail)

    def _read(self, number: int) -> tuple[bytes, int]:
        """Read some events starting with this number; also returns the number of the next event."""
        if number >= self._tail_first:
            return b"".join(self._tail[number - self._tail_first :]), self._count
        if number < self._firsts[0]:
            raise EventsLostError
        at = bisect_right(self._firsts, number) - 1
        events = zlib.decompress(self._blocks[at]).split(_END)[:-1]
        first = self._firsts[at]
        data = b"".join(event + _END for event in events[number - first :])
        return data, first + len(events)

    def _close_block(self) -> None:
        if not self._tail:
            return
        block = zlib.compress(b"".join(self._tail), 1)
        self.whole = self.whole and self._reserve(len(block))
        self._firsts.append(self._tail_first)
        self._blocks.append(block)
        self.size += len(block)
        if not self.whole:
            del self._firsts[:-2], self._blocks[:-2]
        self._tail_first, self._tail, self._tail_bytes = self._count, [], 0

    def _wake(self) -> None:
        self._growth.set()
        self._growth = asyncio.Event()

# SPDX-License-Identifier: Apache-2.0
"""Responses that are kept for a while: so many, so many bytes, so long, and by whose key."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rtp_llm.server.errors import ApiError
from rtp_llm.server.responses.event_log import EventLog


class Live(Protocol):
    """What generates a response in the background."""

    def body(self) -> bytes:
        """The response as it is now, as JSON."""

    async def cancel(self) -> None:
        """End it, and return when that is done."""


@dataclass(frozen=True)
class StoredItem:
    """An item of a conversation, as JSON."""

    id: str
    json: bytes


@dataclass(kw_only=True)
class StoredResponse:
    """`body`: the response as JSON; `inputs`: items of its request; `history`: all before these.

    `owner`: whose it is; `live`: what generates it, None: it has ended; `streamed`: in the
    background and as a stream, whose `events` are kept where there is room; `counted`: bytes that
    the store counts for it.
    """

    id: str
    owner: str
    body: bytes
    inputs: Sequence[StoredItem] = ()
    outputs: Sequence[StoredItem] = ()
    history: Sequence[StoredItem] = ()
    background: bool = False
    live: Live | None = None
    streamed: bool = False
    events: EventLog | None = None
    until: float = 0.0
    counted: int = 0

    @property
    def current(self) -> bytes:
        """The body, of one that is generated as it is now."""
        return self.body if self.live is None else self.live.body()

    @property
    def size(self) -> int:
        """Bytes of its texts, those that it shares with earlier responses included."""
        kept = self.events.size if self.events is not None else 0
        return kept + len(self.body) + sum(len(item.json) for item in self.conversation)

    @property
    def conversation(self) -> list[StoredItem]:
        """What comes before the items of the next request."""
        return [*self.history, *self.inputs, *self.outputs]


class ResponseStore:
    """`most` responses of `most_bytes` together, each for `seconds` after it was last changed.

    The oldest makes way for a new one, but not while it is generated.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._seconds = most, most_bytes, seconds
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self.bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._most > 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response: StoredResponse) -> bool:
        """Keep a response, or its new state; False where there is no room for it."""
        self.remove(response.id)
        size = response.size
        if not self.fits(response) or not self._make_room(size):
            return False
        response.until = self._clock() + self._seconds
        self._stored[response.id] = response
        response.counted = size
        self.bytes += size
        return True

    def grow(self, response_id: str, size: int) -> bool:
        """So many bytes more of one that is generated; False where there is no room for them."""
        grown = self._stored.get(response_id)
        if grown is None or not self._make_room(size, places=0):
            return False
        grown.counted += size
        self.bytes += size
        return True

    def fits(self, response: StoredResponse) -> bool:
        """Whether there would be room for it alone."""
        return self.enabled and response.size <= self._most_bytes

    def find(self, response_id: str, owner: str, param: str | None = None) -> StoredResponse:
        """What `owner` may see of this id. `param`: the field that names it.

        Raises ApiError 404.
        """
        self._expire()
        found = self._stored.get(response_id)
        if found is not None and found.owner == owner:
            return found
        kept = "" if self.enabled else " This server stores none (see --max-stored-responses)."
        code = "previous_response_not_found" if param else "not_found"
        message = f"Response with id {response_id[:100]!r} not found.{kept}"
        raise ApiError(404, message, param=param, code=code)

    def find_items(self, ids: Collection[str], owner: str) -> dict[str, bytes]:
        """Items of what `owner` may see, by their ids."""
        self._expire()
        return {
            item.id: item.json
            for response in self._stored.values()
            if response.owner == owner
            for item in (*response.inputs, *response.outputs)
            if item.id in ids
        }

    def remove(self, response_id: str) -> None:
        """Forget it; what still generates it goes on."""
        removed = self._stored.pop(response_id, None)
        if removed is not None:
            self.bytes -= removed.counted

    def _expire(self) -> None:
        now = self._clock()
        ended = [each for each in self._stored.values() if each.live is None]
        for each in ended:
            if each.until <= now:
                self.remove(each.id)

    def _make_room(self, size: int, places: int = 1) -> bool:
        self._expire()
        while len(self._stored) + places > self._most or self.bytes + size > self._most_bytes:
            oldest = next((r for r in self._stored.values() if r.live is None), None)
            if oldest is None:
                return False
            self.remove(oldest.id)
        return True

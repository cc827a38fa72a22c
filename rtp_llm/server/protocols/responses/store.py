# SPDX-License-Identifier: Apache-2.0
"""A store of responses, limited by number, bytes and age, and separated by API key."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rtp_llm.server.protocols.responses.event_log import EventLog
from rtp_llm.server.types.errors import ApiError


class Live(Protocol):
    """A response that is being generated in the background."""

    def body(self) -> bytes:
        """The current state of the response, as JSON."""

    async def cancel(self) -> None:
        """Cancel the generation, and return when it has ended."""


@dataclass(frozen=True)
class StoredItem:
    """An item of a conversation, as JSON."""

    id: str
    json: bytes


@dataclass(kw_only=True)
class StoredResponse:
    """`body`: the response as JSON; `inputs`: items of its request; `history`: earlier items.

    `owner`: its owner's identifier; `live`: its generation, None once it has ended; `streamed`: it
    is a background stream, whose `events` are kept if there is room; `counted`: bytes that the
    store counts for it.
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
        """The body; while the response is being generated, its current state."""
        return self.body if self.live is None else self.live.body()

    @property
    def size(self) -> int:
        """Size of its texts in bytes, including those shared with earlier responses."""
        kept = self.events.size if self.events is not None else 0
        return kept + len(self.body) + sum(len(item.json) for item in self.conversation)

    @property
    def conversation(self) -> list[StoredItem]:
        """The items that precede those of a follow-up request."""
        return [*self.history, *self.inputs, *self.outputs]


class ResponseStore:
    """Up to `most` responses with `max_bytes` in total, each for `seconds` after its last change.

    The oldest is evicted for a new one, but not while it is being generated.
    """

    def __init__(
        self,
        most: int,
        max_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._max_bytes, self._seconds = most, max_bytes, seconds
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self.bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether responses are stored at all."""
        return self._most > 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response: StoredResponse) -> bool:
        """Store a response or its new state; returns False if there is no room."""
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
        """Reserve additional bytes for a running response; returns False if there is no room."""
        grown = self._stored.get(response_id)
        if grown is None or not self._make_room(size, places=0):
            return False
        grown.counted += size
        self.bytes += size
        return True

    def fits(self, response: StoredResponse) -> bool:
        """Whether it would fit into an empty store."""
        return self.enabled and response.size <= self._max_bytes

    def find(self, response_id: str, owner: str, param: str | None = None) -> StoredResponse:
        """The response with this id, if `owner` may see it. `param`: the field to name in errors.

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
        """Items by id, of responses that `owner` may see."""
        self._expire()
        return {
            item.id: item.json
            for response in self._stored.values()
            if response.owner == owner
            for item in (*response.inputs, *response.outputs)
            if item.id in ids
        }

    def remove(self, response_id: str) -> None:
        """Remove the response; its generation, if still running, continues."""
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
        while len(self._stored) + places > self._most or self.bytes + size > self._max_bytes:
            oldest = next((r for r in self._stored.values() if r.live is None), None)
            if oldest is None:
                return False
            self.remove(oldest.id)
        return True

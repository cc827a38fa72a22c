# SPDX-License-Identifier: Apache-2.0
"""What a client gets: whole events, whole answers, and an error it can read when one breaks."""

from __future__ import annotations

from typing import Any

from starlette.types import Send

from rtp_llm.server.error_body import error_event
from rtp_llm.server.errors import ApiError
from rtp_llm.server.http.asgi import send_body, send_error

# An answer that is no stream is passed on when all of it is there, so that an error can take its
# place until then; a longer one goes out as it comes.
HELD_BYTES = 2**20
# An event of a stream that is longer goes out in pieces.
EVENT_BYTES = 2**18
_ENDS = (b"\n\n", b"\r\n\r\n")


class Reply:
    """Passes the ASGI events of a worker's answer on."""

    def __init__(self, send: Send, path: str) -> None:
        """`path`: of the request, whose protocol errors have to keep to."""
        self.status: int | None = None
        """Of what went out."""
        self._send, self._path = send, path
        self._stream = self._whole = False
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._tail = b""  # of an event that is not complete
        self._amid = False  # an event, of which a part went out

    @property
    def begun(self) -> bool:
        """Something went out: no other answer can take its place."""
        return self.status is not None

    async def take(self, event: dict[str, Any]) -> None:
        """An event of the worker's answer."""
        if self._stream and not self._tail and event["body"].endswith(_ENDS):
            self._amid = False
            await self._send(event)  # as nearly all of them
            return
        if event["type"] == "http.response.start":
            named = dict(event["headers"])
            self._stream, self._whole = _is_stream(named), _is_whole(named)
        if self._stream:
            await self._take_of_stream(event)
        elif self.begun or not self._whole:
            await self._pass(event)
        else:
            await self._hold(event)

    async def fail(self, error: ApiError) -> bool:
        """Tell the client; False where it was told half of something else that cannot be ended."""
        if not self.begun:
            self._held.clear()
            self.status = error.status
            await send_error(self._send, error, self._path)
            return True
        if not self._stream:
            return False
        before = b"\n\n" if self._amid else b""
        await send_body(self._send, before + error_event(error, self._path))
        return True

    async def _hold(self, event: dict[str, Any]) -> None:
        self._held.append(event)
        self._held_bytes += len(event.get("body", b""))
        is_body = event["type"] == "http.response.body"
        complete = is_body and not event["more_body"]
        if complete or self._held_bytes > HELD_BYTES:
            held, self._held = self._held, []
            for each in held:
                await self._pass(each)

    async def _take_of_stream(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            await self._pass(event)
            return
        body = self._tail + event["body"] if self._tail else event["body"]
        if not event["more_body"]:
            self._tail = b""
            await self._pass({**event, "body": body})
            return
        end = len(body) if body.endswith(_ENDS) else _end_of_events(body)
        if not end and len(body) > EVENT_BYTES:
            end, self._amid = len(body), True
        elif end:
            self._amid = False
        self._tail = body[end:]
        if end:
            await self._pass({**event, "body": body[:end]})

    async def _pass(self, event: dict[str, Any]) -> None:
        self.status = event.get("status", self.status)
        await self._send(event)


def _is_whole(named: dict[bytes, bytes]) -> bool:
    """Nobody can make use of half of it."""
    kind = named.get(b"content-type", b"")
    return b"content-length" in named or kind.startswith(b"application/json")


def _is_stream(named: dict[bytes, bytes]) -> bool:
    """Server-sent events to which another one can be added."""
    plain = b"content-length" not in named and b"content-encoding" not in named
    return plain and named.get(b"content-type", b"").startswith(b"text/event-stream")


def _end_of_events(body: bytes) -> int:
    """Where the last complete event ends; 0 where none does."""
    return max((at + len(end) for end in _ENDS if (at := body.rfind(end)) >= 0), default=0)

# SPDX-License-Identifier: Apache-2.0
"""Relays complete events and complete answers, and a well-formed error if an answer breaks."""

from __future__ import annotations

from typing import Any

from starlette.types import Send

from rtp_llm.server.http.asgi import send_body, send_error
from rtp_llm.server.types.error_body import error_event
from rtp_llm.server.types.errors import ApiError

# An answer that is not a stream is held until it is complete, so that an error can replace it;
# one longer than this is relayed as it arrives.
HELD_BYTES = 2**20
# A longer event of a stream is relayed in pieces.
EVENT_BYTES = 2**18
_ENDS = (b"\n\n", b"\r\n\r\n")


class Reply:
    """Relays the ASGI events of a worker's answer to the client."""

    def __init__(self, send: Send, path: str) -> None:
        """`path`: the request's path; it determines the format of errors."""
        self.status: int | None = None
        """Status that was sent."""
        self._send, self._path = send, path
        self._stream = self._whole = False
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._tail = b""  # part of an incomplete event
        self._amid = False  # part of the current event was sent

    @property
    def begun(self) -> bool:
        """Whether anything was sent, so that no other answer can take its place."""
        return self.status is not None

    async def take(self, event: dict[str, Any]) -> None:
        """Handle one ASGI event of the worker's answer."""
        if self._stream and not self._tail and event["body"].endswith(_ENDS):
            self._amid = False
            await self._send(event)  # the common case
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
        """Send an error; False if a partial answer was sent that no error can follow."""
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
    """Whether an answer is useless unless it is complete."""
    kind = named.get(b"content-type", b"")
    return b"content-length" in named or kind.startswith(b"application/json")


def _is_stream(named: dict[bytes, bytes]) -> bool:
    """Whether the answer is a stream of server-sent events, to which an event can be added."""
    plain = b"content-length" not in named and b"content-encoding" not in named
    return plain and named.get(b"content-type", b"").startswith(b"text/event-stream")


def _end_of_events(body: bytes) -> int:
    """Where the last complete event ends; 0 where none does."""
    return max((at + len(end) for end in _ENDS if (at := body.rfind(end)) >= 0), default=0)

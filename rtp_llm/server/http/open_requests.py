# SPDX-License-Identifier: Apache-2.0
"""Limits on the number of open requests and on the memory held by their bodies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from starlette.types import Message, Receive, Scope

from rtp_llm.config.settings import Settings
from rtp_llm.server.types.errors import ApiError, unavailable

# Scope key: the Body that arrived or was refused before the application was called.
BODY = "rtp_llm.body"
# The same: whether all of the body had arrived then.
ARRIVED = "rtp_llm.arrived"
# Bodies up to this size may also use the last part of max_open_bytes.
SMALL_BYTES, RESERVE = 2**16, 1 / 32


class OpenRequests:
    """The open requests of one process. Belongs to an event loop.

    Arriving bodies and complete requests are limited separately, to the same number. When there is
    no room for another arriving body, the one that has been arriving longest is refused.
    """

    def __init__(self, settings: Settings) -> None:
        self.count = self.bytes = 0
        self.arriving: OrderedDict[Body, None] = OrderedDict()
        self._pace = asyncio.Lock()
        self._settings = settings
        self._most = settings.max_open_requests
        self._max_bytes = max(settings.max_open_bytes, settings.max_request_bytes)
        self._max_large_bytes = max(
            self._max_bytes - int(RESERVE * self._max_bytes), settings.max_request_bytes
        )

    def expect(self, on_abandon: Callable[[], None]) -> Body:
        """Register a body that arrives before its request is entered. Raises ApiError 503.

        `on_abandon` is called if the client disconnects first.
        """
        self.check_room()
        body = Body(self, on_abandon)
        self.arrive(body)
        return body

    @contextlib.contextmanager
    def enter(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """Enter a request, and get its body's `receive`. Both raise ApiError if there is no room.

        Reading past the end of the body signals that it is no longer held.
        """
        body: Body | None = scope.pop(BODY, None)
        if body is None:
            self.check_room()
            body = Body(self)
        body.arrived = scope.get(ARRIVED, False)
        try:
            yield body.open(receive)
        finally:
            body.leave()

    async def pace(self) -> None:
        """Admit one large body per turn of the event loop, however many are complete at once."""
        async with self._pace:
            await asyncio.sleep(0)

    def check_room(self) -> None:
        """Raise ApiError 503 while the maximum number of complete requests is open."""
        if self.count >= self._most:
            raise _closing(unavailable(_FULL.format("requests"), "overloaded"))

    def arrive(self, body: Body) -> None:
        """Register a body that is waiting for more data."""
        if body in self.arriving:
            return
        if len(self.arriving) >= self._most:
            self._refuse_oldest("requests")
        self.arriving[body] = None

    def hold(self, body: Body, size: int) -> None:
        """Make room for bytes of a body; raises ApiError 503 where there is none."""
        small = body.held + size <= SMALL_BYTES
        most = self._max_bytes if small else self._max_large_bytes
        while self.bytes + size > most and self._refuse_oldest("bytes", but=body):
            pass
        if self.bytes + size > most:
            raise _closing(unavailable(_FULL.format("bytes"), "overloaded"))
        self.bytes += size

    def _refuse_oldest(self, what: str, but: Body | None = None) -> bool:
        oldest = next((each for each in self.arriving if each is not but), None)
        if oldest is None:
            return False
        oldest.refuse(_closing(unavailable(_FULL.format(what), "overloaded")))
        return True

    @property
    def window(self) -> tuple[float, int]:
        """Seconds, and the number of bytes that must arrive within them."""
        seconds = self._settings.body_timeout
        return seconds, max(1, int(seconds * self._settings.min_body_rate))

    @property
    def max_body_bytes(self) -> int:
        """Size in bytes of the largest body that is accepted."""
        return self._settings.max_request_bytes


class Body:
    """The body of one request: it counts as arriving, then as open, until the request ends.

    If the application expects it, it first grows in its connection, which checks it periodically.
    """

    def __init__(
        self, requests: OpenRequests, on_abandon: Callable[[], None] | None = None
    ) -> None:
        self.held = 0
        self.arrived = False
        """Whether all of it is there, so that `receive` does not wait."""
        self.began = time.perf_counter()
        self.on_refused: Callable[[], None] | None = None
        """Called if it is refused before it was opened; `open` then raises the error."""
        self._requests, self._on_abandon = requests, on_abandon
        self._receive: Receive
        self._grown = 0  # bytes reserved but not yet received
        self._complete = self._counted = False
        self._error: ApiError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._until, self._missing = 0.0, 0

    # -- in its connection -----------------------------------------------------------------------

    def grow(self, size: int) -> bool:
        """Note that `size` bytes have arrived in total; returns whether to wait for more."""
        if not self._until:
            self._open_window()
        try:
            self._hold(size - self._grown)
        except ApiError as error:
            self._error = error
            return False
        self._grown = size
        if self._missing <= 0:
            self._open_window()
        return size <= self._requests.max_body_bytes

    def check(self, now: float) -> None:
        """Refuse the body if it is late; ``now``: the loop's time."""
        if now >= self._until:
            self.refuse(self._late())

    def abandon(self) -> None:
        """Drop the body: the client disconnected."""
        self.leave()
        notify, self._on_abandon = self._on_abandon, None
        if notify is not None:
            notify()

    # -- in the application ----------------------------------------------------------------------

    def open(self, receive: Receive) -> Receive:
        """Wrap the connection's `receive`, to read the body within its limits."""
        self._receive, self.on_refused, self._missing = receive, None, 0
        return self.receive

    async def receive(self) -> Message:
        """The next part of the body; raises ApiError."""
        if self._complete:
            self._release()
            return await self._receive()
        if self._grown > SMALL_BYTES:
            await self._requests.pace()
        if self._error is not None:
            raise self._error
        self._requests.arrive(self)
        message = await self._next()
        size = len(message.get("body", b""))
        counted = min(size, self._grown)
        self._grown -= counted
        self._hold(size - counted)
        if not message.get("more_body", False):
            self._complete = True
            self._requests.arriving.pop(self, None)
            self._requests.check_room()
            self._requests.count += 1
            self._counted = True
        return message

    async def _next(self) -> Message:
        """Wait for the minimum amount of data per window, or the end of the body."""
        if self.arrived:
            return await self._receive()
        if self._missing <= 0:
            self._open_window()
        try:
            async with asyncio.timeout_at(self._until) as self._timeout:
                message = await self._receive()
        except TimeoutError as error:
            raise self._error or self._late() from error
        finally:
            self._timeout = None
        if self._error is not None:
            raise self._error
        return message

    def _open_window(self) -> None:
        seconds, self._missing = self._requests.window
        self._until = asyncio.get_running_loop().time() + seconds

    def _hold(self, size: int) -> None:
        self._requests.hold(self, size)
        self.held += size
        self._missing -= size

    def _late(self) -> ApiError:
        seconds, least = self._requests.window
        text = (
            f"Less than {least} bytes of the body came in {seconds:g} s (see --body-timeout, "
            "--min-body-rate)."
        )
        return _closing(ApiError(408, text, code="request_timeout"))

    def refuse(self, error: ApiError) -> None:
        """Refuse the body to make room for another one, without waiting."""
        self._error = error
        self._requests.arriving.pop(self, None)
        self._release()
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())
        if self.on_refused is not None:
            self.on_refused()

    def leave(self) -> None:
        """The request has ended."""
        self._requests.arriving.pop(self, None)
        self._release()
        if self._counted:
            self._requests.count -= 1

    def _release(self) -> None:
        self._requests.bytes -= self.held
        self.held = 0


# An application's method: returns the Body in which a request grows before the application is
# called, or None to call it at once.
BufferBody = Callable[[Scope], Body | None]
_FULL = "As many requests are open as may be (see --max-open-{}); try again."


def _closing(error: ApiError) -> ApiError:
    """Headers that close the connection, as the rest of the body is not read."""
    error.headers["Connection"] = "close"
    return error

# SPDX-License-Identifier: Apache-2.0
"""How many requests are open at once, and how much is held of their bodies: both have an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from starlette.types import Message, Receive, Scope

from rtp_llm.config.settings import Settings
from rtp_llm.server.errors import ApiError, unavailable

# Of a scope: the Body, where it came in, or was refused, before the application was called.
BODY = "rtp_llm.body"
# Bodies up to this size may also use the last part of max_open_bytes.
SMALL_BYTES, RESERVE = 2**16, 1 / 32


class OpenRequests:
    """Those of one process. Belongs to an event loop.

    A body that is still arriving takes no place from requests that are whole. There may be as many
    of the former as of the latter; where there is no room, the one that has been arriving longest
    makes way.
    """

    def __init__(self, settings: Settings) -> None:
        self.count = self.bytes = 0
        self.arriving: OrderedDict[Body, None] = OrderedDict()
        self._pace = asyncio.Lock()
        self._settings = settings
        self._most = settings.max_open_requests
        self._most_bytes = max(settings.max_open_bytes, settings.max_request_bytes)
        self._most_large = max(
            self._most_bytes - int(RESERVE * self._most_bytes), settings.max_request_bytes
        )

    def expect(self, on_abandon: Callable[[], None]) -> Body:
        """A body that comes in before its request is entered. Raises ApiError 503.

        `on_abandon` is called if its client goes away instead.
        """
        self.check_room()
        body = Body(self, on_abandon)
        self.arrive(body)
        return body

    @contextlib.contextmanager
    def enter(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """Its place, and the way to read its body. Both raise ApiError where there is no room.

        Reading on after the end of the body says that it is not held any more.
        """
        body: Body | None = scope.pop(BODY, None)
        if body is None:
            self.check_room()
            body = Body(self)
        try:
            yield body.open(receive)
        finally:
            body.leave()

    async def pace(self) -> None:
        """Let one large body on in each turn of the event loop, however many are whole at once."""
        async with self._pace:
            await asyncio.sleep(0)

    def check_room(self) -> None:
        """Raise ApiError 503 while as many whole requests are open as may be."""
        if self.count >= self._most:
            raise _closing(unavailable(_FULL.format("requests"), "overloaded"))

    def arrive(self, body: Body) -> None:
        """More of a body is waited for."""
        if body in self.arriving:
            return
        if len(self.arriving) >= self._most:
            self._refuse_oldest("requests")
        self.arriving[body] = None

    def hold(self, body: Body, size: int) -> None:
        """Make room for bytes of a body; raises ApiError 503 where there is none."""
        small = body.held + size <= SMALL_BYTES
        most = self._most_bytes if small else self._most_large
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
        """Seconds, and the bytes of a body that must come in them."""
        seconds = self._settings.body_timeout
        return seconds, max(1, int(seconds * self._settings.min_body_rate))

    @property
    def most_of_one(self) -> int:
        """Bytes of the longest body that is taken."""
        return self._settings.max_request_bytes


class Body:
    """That of one request: it counts as arriving, then as open, until it is left.

    It grows in its connection first, which checks it now and then, if the application expects it.
    """

    def __init__(
        self, requests: OpenRequests, on_abandon: Callable[[], None] | None = None
    ) -> None:
        self.held = 0
        self.began = time.perf_counter()
        self.on_refused: Callable[[], None] | None = None
        """Called when it is refused before it was opened, which then raises the error."""
        self._requests, self._on_abandon = requests, on_abandon
        self._receive: Receive
        self._grown = 0  # bytes that are held but not received
        self._complete = self._counted = False
        self._error: ApiError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._until, self._missing = 0.0, 0

    # -- in its connection -----------------------------------------------------------------------

    def grow(self, size: int) -> bool:
        """`size` bytes of it have come by now; whether to wait for more."""
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
        return size <= self._requests.most_of_one

    def check(self, now: float) -> None:
        """Refuse it if it is late; ``now``: the loop's time."""
        if now >= self._until:
            self.refuse(self._late())

    def abandon(self) -> None:
        """Its client went away."""
        self.leave()
        tell, self._on_abandon = self._on_abandon, None
        if tell is not None:
            tell()

    # -- in the application ----------------------------------------------------------------------

    def open(self, receive: Receive) -> Receive:
        """The way to read it; `receive`: the connection's."""
        self._receive, self.on_refused, self._missing = receive, None, 0
        return self.receive

    async def receive(self) -> Message:
        """The next part; raises ApiError."""
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
        """Waits until so much came in each window, or all of it."""
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
        """It makes way for another one, which does not wait for that."""
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


# Of an application: the Body in which a request is to grow before the application is called; None:
# it is called at once.
BufferBody = Callable[[Scope], Body | None]
_FULL = "As many requests are open as may be (see --max-open-{}); try again."


def _closing(error: ApiError) -> ApiError:
    """The rest of the body is not read."""
    error.headers["Connection"] = "close"
    return error

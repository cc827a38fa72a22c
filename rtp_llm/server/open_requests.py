"""How many requests are open at once, and how much is held of their bodies: both have an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from starlette.types import Message, Receive

from rtp_llm.config.settings import Settings
from rtp_llm.server.errors import ApiError, unavailable

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
        self.arriving: OrderedDict[_Body, None] = OrderedDict()
        self._settings = settings
        self._most = settings.max_open_requests
        self._most_bytes = max(settings.max_open_bytes, settings.max_request_bytes)
        self._most_large = max(
            self._most_bytes - int(RESERVE * self._most_bytes), settings.max_request_bytes
        )

    @contextlib.contextmanager
    def enter(self, receive: Receive) -> Iterator[Receive]:
        """Its place, and the way to read its body. Both raise ApiError where there is no room.

        Reading on after the end of the body says that it is not held any more.
        """
        self.check_room()
        body = _Body(self, receive)
        try:
            yield body.receive
        finally:
            body.leave()

    def check_room(self) -> None:
        """Raise ApiError 503 while as many whole requests are open as may be."""
        if self.count >= self._most:
            raise _closing(unavailable(_FULL.format("requests"), "overloaded"))

    def arrive(self, body: _Body) -> None:
        """More of a body is waited for."""
        if body in self.arriving:
            return
        if len(self.arriving) >= self._most:
            self._refuse_oldest("requests")
        self.arriving[body] = None

    def hold(self, body: _Body, size: int) -> None:
        """Make room for bytes of a body; raises ApiError 503 where there is none."""
        small = body.held + size <= SMALL_BYTES
        most = self._most_bytes if small else self._most_large
        while self.bytes + size > most and self._refuse_oldest("bytes", but=body):
            pass
        if self.bytes + size > most:
            raise _closing(unavailable(_FULL.format("bytes"), "overloaded"))
        self.bytes += size

    def _refuse_oldest(self, what: str, but: _Body | None = None) -> bool:
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


class _Body:
    """That of one request: it counts as arriving, then as open, until it is left."""

    def __init__(self, requests: OpenRequests, receive: Receive) -> None:
        self.held = 0
        self._requests, self._receive = requests, receive
        self._complete = self._counted = False
        self._error: ApiError | None = None
        self._timeout: asyncio.Timeout | None = None
        self._until, self._missing = 0.0, 0

    async def receive(self) -> Message:
        """The next part; raises ApiError."""
        if self._complete:
            self._release()
            return await self._receive()
        self._requests.arrive(self)
        message = await self._next()
        size = len(message.get("body", b""))
        self._requests.hold(self, size)
        self.held += size
        self._missing -= size
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
            seconds, self._missing = self._requests.window
            self._until = asyncio.get_running_loop().time() + seconds
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

    def leave(self) -> None:
        """The request has ended."""
        self._requests.arriving.pop(self, None)
        self._release()
        if self._counted:
            self._requests.count -= 1

    def _release(self) -> None:
        self._requests.bytes -= self.held
        self.held = 0


_FULL = "As many requests are open as may be (see --max-open-{}); try again."


def _closing(error: ApiError) -> ApiError:
    """The rest of the body is not read."""
    error.headers["Connection"] = "close"
    return error

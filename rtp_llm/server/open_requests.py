"""How many requests are open at once, and how much is held of their bodies: both have an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import Message, Receive

from rtp_llm.config.settings import Settings
from rtp_llm.server.errors import ApiError, unavailable

# Who sends nothing of its body for so long has no place any more.
BODY_SECONDS = 30.0


class OpenRequests:
    """Those of one process. Belongs to an event loop."""

    def __init__(self, settings: Settings) -> None:
        self.count = self.bytes = 0
        self._most = settings.max_open_requests
        self._most_bytes = max(settings.max_open_bytes, settings.max_request_bytes)

    @contextlib.contextmanager
    def enter(self, receive: Receive) -> Iterator[Receive]:
        """Its place, and the way to read its body. Both raise ApiError where there is no room."""
        if self.count >= self._most:
            raise _closing(unavailable(_FULL.format("requests"), "overloaded"))
        held, complete = 0, False

        async def counted() -> Message:
            nonlocal held, complete
            try:
                # How long an answer takes is not the client's fault.
                async with asyncio.timeout(None if complete else BODY_SECONDS):
                    message = await receive()
            except TimeoutError as error:
                text = f"Nothing came of the body for {BODY_SECONDS:g} s."
                raise _closing(ApiError(408, text, code="request_timeout")) from error
            complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            if self.bytes + size > self._most_bytes:
                raise _closing(unavailable(_FULL.format("bytes"), "overloaded"))
            held, self.bytes = held + size, self.bytes + size
            return message

        self.count += 1
        try:
            yield counted
        finally:
            self.count, self.bytes = self.count - 1, self.bytes - held


_FULL = "As many requests are open as may be (see --max-open-{}); try again."


def _closing(error: ApiError) -> ApiError:
    """The rest of the body is not read."""
    error.headers["Connection"] = "close"
    return error

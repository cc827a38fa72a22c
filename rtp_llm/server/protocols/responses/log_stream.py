# SPDX-License-Identifier: Apache-2.0
"""The stream of a background response: its past events, then new ones as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rtp_llm.server.endpoint.http_answer import EVENTS, UNBUFFERED
from rtp_llm.server.generation.generation import Generation
from rtp_llm.server.http.asgi import EVENT_STREAM, send_body, send_start, wait_for_disconnect
from rtp_llm.server.keys.key_ring import ACCOUNT
from rtp_llm.server.protocols.responses.event_log import EventLog, EventsLostError
from rtp_llm.server.types.error_body import error_event
from rtp_llm.server.types.errors import ApiError


class LogStream(Response):
    """Ends with the response, or when the client disconnects, which does not stop the response."""

    def __init__(
        self,
        log: EventLog,
        after: int = -1,
        generation: Generation | None = None,
        more_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """`after`: sequence number of the client's last event; `generation`: the one that this
        request started."""
        super().__init__()
        self.generation = generation
        self.disconnected = False
        self._log, self._after = log, after
        self._more_headers = more_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.generation is None:
            await self._run(scope, receive, send)
            return
        scope["rtp_llm.answer"] = self
        account = scope[ACCOUNT]
        account.end_request()  # the background generation is counted separately
        try:
            await self._run(scope, receive, send)
        finally:
            account.prolong_request()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[EVENT_STREAM] = True
        task = asyncio.create_task(self._send(scope["path"], send))
        watcher = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
            self.disconnected = not task.done()
        finally:
            watcher.cancel()
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _send(self, path: str, send: Send) -> None:
        try:
            await send_start(
                send, 200, [(b"content-type", EVENTS), *UNBUFFERED, *self._more_headers]
            )
            try:
                async with aclosing(self._log.after(self._after)) as events:
                    async for data in events:
                        await send_body(send, data, more=True)
            except EventsLostError:
                await send_body(send, error_event(events_lost(), path), more=True)
            await send_body(send, b"")
        except ClientDisconnect:
            self.disconnected = True


def events_lost() -> ApiError:
    """A 400 error for events that were dropped for lack of room."""
    return ApiError(
        400,
        "The events of this response are not kept any more (see --max-stored-response-bytes); "
        "get it without stream.",
        param="stream",
        code="events_not_kept",
    )

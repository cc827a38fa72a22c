# SPDX-License-Identifier: Apache-2.0
"""ASGI responses that generate while the client listens, and stop when it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.generation.generation import ChoiceDelta, Generation, Usage
from rtp_llm.server.generation.pooling import Pooling
from rtp_llm.server.http.asgi import (
    EVENT_STREAM,
    REQUEST_ID,
    send_body,
    send_error,
    send_json,
    send_start,
    wait_for_disconnect,
)
from rtp_llm.server.keys.key_ring import ACCOUNT
from rtp_llm.server.types.errors import ApiError, unavailable

PING_SECONDS = 10.0
EVENTS = b"text/event-stream; charset=utf-8"
UNBUFFERED = [
    (b"cache-control", b"no-cache"),
    # A buffering proxy would turn a stream into a single late answer.
    (b"x-accel-buffering", b"no"),
]


G = TypeVar("G", Generation, Pooling)


class StreamWriter(Protocol):
    """Turns deltas into server-sent events or lines."""

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The events of one delta; empty when there is nothing to show yet."""

    def end(self, usage: Usage) -> bytes:
        """The events that close the stream."""

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The events that close a failed stream."""


class AnswerWriter(Protocol):
    """Collects deltas into one JSON body."""

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta."""

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""


class EngineAnswer(Response, Generic[G]):
    """Runs a generation in the task of its request; another one waits for the client to disconnect,
    and then cancels it."""

    def __init__(
        self,
        state: ServerState,
        generation: G,
        more_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__()
        self.generation: G = generation
        self._more_headers = more_headers
        self.disconnected = False
        self._state = state
        self._task: asyncio.Task[None] | None = None
        self._cut = self._ended = False
        self._started = False

    def cut(self) -> None:
        """See Cuttable."""
        self._cut = True
        if self._task is not None:
            self._task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["rtp_llm.answer"] = self
        self._scope = scope
        self.generation.account = scope.get(ACCOUNT)
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch(receive))
        self._state.begin_answer(self)
        try:
            await self._guarded(send)
        except asyncio.CancelledError:
            if not (self.disconnected or self._cut) or self._task is None:
                raise
            self._task.uncancel()
        finally:
            self._ended = True
            watcher.cancel()
            if self.disconnected:
                self._state.metrics.disconnects.inc()
            self._state.end_answer(self)

    async def _watch(self, receive: Receive) -> None:
        await wait_for_disconnect(receive)
        if not self._ended and self._task is not None:
            self.disconnected = True
            self._task.cancel()

    async def _guarded(self, send: Send) -> None:
        """Run the generation; anything that ends it early becomes an error answer."""
        try:
            await self._generate(send)
            return
        except ClientDisconnect:
            self.disconnected = True
            return
        except ApiError as error:
            problem = error
        except asyncio.CancelledError:
            if self.disconnected or not self._cut or self._task is None:
                raise
            self._task.uncancel()
            problem = unavailable("The server is shutting down; the answer was cut.", "shutdown")
        if self._started:
            await send_body(send, self._last_event(problem))
        else:
            await send_error(send, problem, self._scope["path"], self._scope.get(REQUEST_ID))

    async def _generate(self, send: Send) -> None:
        raise NotImplementedError

    def _last_event(self, problem: ApiError) -> bytes:
        """Send the final event of a stream that has begun."""
        raise NotImplementedError


class StreamedAnswer(EngineAnswer[Generation]):
    """Server-sent events or lines; headers are sent with the first delta, so that early errors
    have a proper status."""

    def __init__(
        self,
        state: ServerState,
        generation: Generation,
        writer: StreamWriter,
        more_headers: Sequence[tuple[bytes, bytes]] = (),
        ping: bytes = b"",
        media_type: bytes = EVENTS,
    ) -> None:
        """`ping`: sent after PING_SECONDS without other data."""
        super().__init__(state, generation, more_headers)
        self._writer = writer
        self._ping = ping
        self._media_type = media_type

    async def _generate(self, send: Send) -> None:
        writer = self._writer
        async with aclosing(self.generation.deltas()) as deltas:
            async for delta in self._pinged(deltas, send) if self._ping else deltas:
                data = writer.delta(delta)
                if data:
                    await self._start(send)
                    await send_body(send, data, more=True)
        await self._start(send)
        await send_body(send, writer.end(self.generation.usage))

    async def _pinged(
        self, deltas: AsyncGenerator[ChoiceDelta, None], send: Send
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """Yield the deltas; sends pings while there are none."""
        while True:
            coming = asyncio.ensure_future(anext(deltas, None))
            try:
                while not (await asyncio.wait({coming}, timeout=PING_SECONDS))[0]:
                    await self._start(send)
                    await send_body(send, self._ping, more=True)
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            delta = coming.result()
            if delta is None:
                return
            yield delta

    def _last_event(self, problem: ApiError) -> bytes:
        return self._writer.fail(problem, self.generation.usage)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            self._scope[EVENT_STREAM] = self._media_type is EVENTS
            kind = (b"content-type", self._media_type)
            await send_start(send, 200, [kind, *UNBUFFERED, *self._more_headers])


class WholeAnswer(EngineAnswer[Generation]):
    """One JSON body, sent when everything is generated."""

    def __init__(
        self,
        state: ServerState,
        generation: Generation,
        writer: AnswerWriter,
        more_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(state, generation, more_headers)
        self._writer = writer

    async def _generate(self, send: Send) -> None:
        async with aclosing(self.generation.deltas()) as deltas:
            async for delta in deltas:
                self._writer.add(delta)
        await send_json(send, 200, self._writer.body(self.generation.usage), self._more_headers)

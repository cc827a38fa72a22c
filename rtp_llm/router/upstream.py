# SPDX-License-Identifier: Apache-2.0
"""One request to one worker: sends all of it and streams the answer, with timeouts throughout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import h11

from rtp_llm.net.keepalive import end_with_peer
from rtp_llm.router.workers import Worker

T = TypeVar("T")

_CONNECT_SECONDS = 2.0
_READ_BYTES = _PIECE_BYTES = 65536
# A worker with an open request that misses this many health checks in a row has stopped. Each
# check waits for two seconds; any byte from the worker resets the count.
MAX_UNANSWERED = 4
_LOOK_SECONDS = 0.25  # at that count
_GONE_SECONDS = 0.1
# Hop-by-hop headers: each side's connection has its own.
_HOP_HEADERS = (b"connection", b"keep-alive", b"transfer-encoding", b"host", b"expect")


class UnreachableError(OSError):
    """No connection could be made: the worker has not seen the request."""


class SilentError(OSError):
    """The worker keeps the connection open but no longer responds to anything."""


class OverdueError(OSError):
    """The worker is alive but does not answer this request."""


@dataclass(frozen=True)
class Query:
    """A request as received from the client."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


async def call_upstream(
    worker: Worker, query: Query, answer_timeout: float, max_unanswered: float = MAX_UNANSWERED
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the ASGI events of a worker's answer as they arrive.

    Raises:
        UnreachableError: nothing was sent.
        OverdueError: nothing came for ``answer_timeout`` seconds.
        SilentError: it missed so many health checks that it must have stopped.
        OSError, h11.RemoteProtocolError: the connection ended, or the response is malformed.
        h11.LocalProtocolError: the request is not valid HTTP.
    """
    connection = h11.Connection(h11.CLIENT)
    request = connection.send(_head(worker, query)) or b""
    reader, writer = await _connect(worker)
    lasts = _AnswerTimeout(worker, answer_timeout, max_unanswered)
    writer.write(request)
    # Concurrently with reading: a worker may refuse a body before it has received all of it.
    sending = asyncio.create_task(_send(connection, query.body, writer))
    try:
        event: object = None
        while not isinstance(event, h11.EndOfMessage):
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await lasts.wait(lambda: reader.read(_READ_BYTES))
                worker.unanswered = 0
                connection.receive_data(data)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the connection was closed without an answer")
            elif (shown := _event(event)) is not None:
                yield shown
    finally:
        sending.cancel()
        writer.transport.abort()  # whatever was not sent by now is no longer needed


async def _send(connection: h11.Connection, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Send the body in pieces as the worker takes them, so that no second copy is buffered."""
    with contextlib.suppress(OSError):  # the reader of the answer sees the error
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            writer.write(connection.send(h11.Data(data=piece)) or b"")
            await writer.drain()
        writer.write(connection.send(h11.EndOfMessage()) or b"")


def _head(worker: Worker, query: Query) -> h11.Request:
    dropped = (*_HOP_HEADERS, b"content-length")
    kept = [(name, value) for name, value in query.headers if name not in dropped]
    kept += [
        (b"host", worker.url.partition("//")[2].encode()),
        (b"content-length", str(len(query.body)).encode()),
        (b"connection", b"close"),
    ]
    return h11.Request(method=query.method, target=query.target, headers=kept)


async def _connect(worker: Worker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    opening = asyncio.open_connection(worker.host, worker.port, ssl=worker.tls)
    try:
        reader, writer = await asyncio.wait_for(opening, _CONNECT_SECONDS)
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {_CONNECT_SECONDS:g} s") from error
    except OSError as error:
        raise UnreachableError(str(error)) from error
    end_with_peer(writer.get_extra_info("socket"))
    return reader, writer


async def is_gone(worker: Worker) -> bool:
    """Whether nothing listens at the worker's address: its process or its machine has ended.

    Checked twice, as a process that ends closes its sockets one after another.
    """
    for seconds in (_GONE_SECONDS, 0.0):
        try:
            _, writer = await _connect(worker)
        except UnreachableError:
            return True
        writer.transport.abort()
        await asyncio.sleep(seconds)
    return False


@dataclass(frozen=True)
class _AnswerTimeout:
    """Waits for a worker for up to ``seconds``, as long as it answers health checks."""

    worker: Worker
    seconds: float
    max_unanswered: float

    async def wait(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what ``make`` returns; calls ``make`` again after each check of the worker."""
        clock = asyncio.get_running_loop().time
        until = clock() + self.seconds
        while True:
            scope = asyncio.timeout(_LOOK_SECONDS)
            try:
                async with scope:
                    return await make()
            except TimeoutError as error:
                if not scope.expired():  # the system's own timeout timeout
                    raise
                if self.worker.unanswered >= self.max_unanswered:
                    raise SilentError("it has stopped responding") from error
                if clock() >= until:
                    raise OverdueError(f"nothing came for {self.seconds:g} s") from error


def _event(event: object) -> dict[str, Any] | None:
    """Convert an event to ASGI; None for events that the client need not see."""
    if isinstance(event, h11.Response):
        headers = [(name, value) for name, value in event.headers if name not in _HOP_HEADERS]
        return {"type": "http.response.start", "status": event.status_code, "headers": headers}
    if isinstance(event, h11.Data):
        return {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
    if isinstance(event, h11.EndOfMessage):
        return {"type": "http.response.body", "body": b"", "more_body": False}
    return None

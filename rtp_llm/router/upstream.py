# SPDX-License-Identifier: Apache-2.0
"""One request at one worker: sent whole, its answer read in pieces, nobody waited for in vain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import h11

from rtp_llm.keepalive import end_with_peer
from rtp_llm.router.workers import Worker

T = TypeVar("T")

_CONNECT_SECONDS = 2.0
_READ_BYTES = _PIECE_BYTES = 65536
# A worker that owes an answer and gives none to so many questions for its health has stopped. Each
# of them waits for two seconds; any byte from it begins the count anew.
MOST_UNANSWERED = 4
_LOOK_SECONDS = 0.25  # at that count
_GONE_SECONDS = 0.1
# They are about one connection, and each side has its own.
_HOP_HEADERS = (b"connection", b"keep-alive", b"transfer-encoding", b"host", b"expect")


class UnreachableError(OSError):
    """No connection could be made: the worker has seen nothing of the request."""


class SilentError(OSError):
    """The worker holds the connection and answers nothing any more."""


class OverdueError(OSError):
    """The worker lives and says nothing of this request."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


async def call_upstream(
    worker: Worker, asked: Asked, patience: float, most_unanswered: float = MOST_UNANSWERED
) -> AsyncGenerator[dict[str, Any], None]:
    """The ASGI events of a worker's answer, as they come.

    Raises:
        UnreachableError: nothing was sent.
        OverdueError: nothing came for ``patience`` seconds.
        SilentError: it has left so many questions for its health unanswered that it must have
            stopped.
        OSError, h11.RemoteProtocolError: the connection ended, or what came is nonsense.
        h11.LocalProtocolError: what was asked is no request.
    """
    connection = h11.Connection(h11.CLIENT)
    request = connection.send(_head(worker, asked)) or b""
    reader, writer = await _connect(worker)
    lasts = _Patience(worker, patience, most_unanswered)
    writer.write(request)
    # Beside the reading: a worker may refuse a body before it has all of it.
    sending = asyncio.create_task(_send(connection, asked.body, writer))
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
        writer.transport.abort()  # what it has not taken by now is for nobody


async def _send(connection: h11.Connection, body: bytes, writer: asyncio.StreamWriter) -> None:
    """In pieces, as they are taken: what waits is not held twice."""
    with contextlib.suppress(OSError):  # whoever reads the answer hears of it
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            writer.write(connection.send(h11.Data(data=piece)) or b"")
            await writer.drain()
        writer.write(connection.send(h11.EndOfMessage()) or b"")


def _head(worker: Worker, asked: Asked) -> h11.Request:
    dropped = (*_HOP_HEADERS, b"content-length")
    kept = [(name, value) for name, value in asked.headers if name not in dropped]
    kept += [
        (b"host", worker.url.partition("//")[2].encode()),
        (b"content-length", str(len(asked.body)).encode()),
        (b"connection", b"close"),
    ]
    return h11.Request(method=asked.method, target=asked.target, headers=kept)


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
    """Nobody listens at its address: its process, or its machine, has ended.

    Asked twice, as a process that ends closes its connections one after another.
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
class _Patience:
    """How long a worker is waited for: while it answers others and ``seconds`` last."""

    worker: Worker
    seconds: float
    most_unanswered: float

    async def wait(self, make: Callable[[], Awaitable[T]]) -> T:
        """What ``make`` gives; it is made again after each look at the worker."""
        clock = asyncio.get_running_loop().time
        until = clock() + self.seconds
        while True:
            scope = asyncio.timeout(_LOOK_SECONDS)
            try:
                async with scope:
                    return await make()
            except TimeoutError as error:
                if not scope.expired():  # the system's own
                    raise
                if self.worker.unanswered >= self.most_unanswered:
                    raise SilentError("it has stopped responding") from error
                if clock() >= until:
                    raise OverdueError(f"nothing came for {self.seconds:g} s") from error


def _event(event: object) -> dict[str, Any] | None:
    """As ASGI has it; None for what the client need not see."""
    if isinstance(event, h11.Response):
        headers = [(name, value) for name, value in event.headers if name not in _HOP_HEADERS]
        return {"type": "http.response.start", "status": event.status_code, "headers": headers}
    if isinstance(event, h11.Data):
        return {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
    if isinstance(event, h11.EndOfMessage):
        return {"type": "http.response.body", "body": b"", "more_body": False}
    return None

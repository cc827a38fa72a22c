# SPDX-License-Identifier: Apache-2.0
"""Connections of the HTTP protocol without sockets, for tests."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import uvicorn
from uvicorn.server import ServerState as UvicornState

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.asgi import send_error
from rtp_llm.server.http.connection import HttpProtocol
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.open_requests import Body, OpenRequests
from rtp_llm.server.types.errors import ApiError


class Wire(asyncio.Transport):
    """What the loop would do for a connection; ``unsent``: the size of its buffer."""

    def __init__(self, peer: str = "192.0.2.1") -> None:
        super().__init__({"peername": (peer, 9), "sockname": ("127.0.0.1", 8088)})
        self.sent, self.writes = b"", 0
        self.closed = self.aborted = self.ended = self.paused = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.sent += data
        self.writes += 1

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Listener:
    """Connections of one pool; requests wait for ``answer``.

    With ``opened`` bodies come in whole before the application is called.
    """

    def __init__(self, opened: OpenRequests | None = None, **settings: Any) -> None:
        self.opened, self.abandoned = opened, 0
        self.pool = ConnectionPool(Settings(**settings))
        self.config = uvicorn.Config(
            self._app, log_config=None, ws="none", interface="asgi3", proxy_headers=False
        )
        self.server = UvicornState()
        self.scopes: list[Any] = []
        self.bodies: list[int] = []
        self.gone: list[str] = []
        self.pieces: tuple[bytes, ...] = ()
        """Of the body of each answer."""
        self.answer = asyncio.Event()

    def _buffer_body(self, scope: Any) -> Body | None:
        if self.opened is None or scope["path"] == "/unbuffered":
            return None
        return self.opened.expect(self._abandon)

    def _abandon(self) -> None:
        self.abandoned += 1

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if self.opened is None:
            await self._serve(scope, receive, send)
            return
        try:
            with self.opened.enter(scope, receive) as counted:
                await self._serve(scope, counted, send)
        except ApiError as error:
            await send_error(send, error)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0
        message: Any = {"more_body": True}
        while scope["method"] == "POST" and message.get("more_body"):
            message = await receive()
            size += len(message.get("body", b""))
        self.bodies.append(size)
        if message.get("type") == "http.disconnect":
            self.gone.append(scope["path"])
        await self.answer.wait()
        head = [(b"content-length", b"%d" % len(b"".join(self.pieces)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    def connect(self, peer: str = "192.0.2.1") -> tuple[HttpProtocol, Wire]:
        protocol = HttpProtocol(
            self.config, self.server, {}, pool=self.pool, buffer_body=self._buffer_body
        )
        wire = Wire(peer)
        protocol.connection_made(wire)
        return protocol, wire

    def sweep(self, seconds: float) -> None:
        """As the server does so much later."""
        collections.deque(self.pool.sweep(asyncio.get_running_loop().time() + seconds), 0)

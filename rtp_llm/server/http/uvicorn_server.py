# SPDX-License-Identifier: Apache-2.0
"""A uvicorn server without uvicorn's signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.acceptor import Acceptor
from rtp_llm.server.http.connection import HttpProtocol
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.listener import remove_path
from rtp_llm.server.http.tls import Renewal, server_context

# Ticks of uvicorn's main loop, 0.1 s each, between sweeps of all connections.
SWEEP_TICKS = 5
RENEWAL_TICKS = 100  # the same, between checks for a new certificate
# After the drain nothing should still be open; do not wait for whatever is.
CLOSE_SECONDS = 2


class HttpServer(uvicorn.Server):
    """Serves one application on already bound sockets; stop it with `should_exit`.

    If the application has a method `buffer_body`, it decides which bodies are buffered for it.
    """

    def __init__(self, app: ASGIApp, settings: Settings, per_connection: int = 1) -> None:
        """``per_connection``: file descriptors that serving one connection takes."""
        self.connections = ConnectionPool(settings, per_connection)
        tls = server_context(settings)
        self._renewal = Renewal(tls, settings) if tls and settings.enable_ssl_refresh else None
        protocol = functools.partial(
            HttpProtocol, pool=self.connections, buffer_body=getattr(app, "buffer_body", None)
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]
                timeout_graceful_shutdown=CLOSE_SECONDS,
                ssl_context_factory=(lambda *_: tls) if tls else None,
            )
        )
        self._handshake_seconds = settings.header_timeout if tls else None
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; TLS handshakes get --header-timeout instead of uvicorn's default of a minute."""
        protocol = cast("Callable[..., HttpProtocol]", self.config.http_protocol_class)
        make = functools.partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        self._acceptors = [
            Acceptor(each, self.connections, make, self.config.ssl, self._handshake_seconds)
            for each in sockets or ()
        ]
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and let the open ones end."""
        for acceptor in self._acceptors:
            acceptor.close()
        for each in sockets or ():
            remove_path(each)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn every 0.1 s."""
        if counter % SWEEP_TICKS == 0:
            for _ in self.connections.sweep(asyncio.get_running_loop().time()):
                await asyncio.sleep(0)  # yield to other tasks
        if self._renewal is not None and counter % RENEWAL_TICKS == 0:
            self._renewal.check()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by run.py, which drains first; so nothing is captured here."""
        yield

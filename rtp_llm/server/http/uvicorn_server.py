"""uvicorn, with its signal handling left to us."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.connection import HttpProtocol
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.listener import BACKLOG

# Ticks of uvicorn's main loop, 0.1 s each, between two looks at all connections.
SWEEP_TICKS = 5
# After the drain nothing should be open any more; what is, is not waited for.
CLOSE_SECONDS = 2


class HttpServer(uvicorn.Server):
    """Serves one application on sockets that are already bound; stop it with `should_exit`.

    An application with a method `buffer_body` is asked which bodies it need not wait for itself.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.connections = ConnectionPool(settings)
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
                backlog=BACKLOG,
                timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn every 0.1 s."""
        if counter % SWEEP_TICKS == 0:
            for _ in self.connections.sweep(asyncio.get_running_loop().time()):
                await asyncio.sleep(0)  # others have a turn
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are run.py's business: they start a drain, not a shutdown."""
        yield

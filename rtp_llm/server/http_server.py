"""uvicorn, with its signal handling left to us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from rtp_llm.server.lingering import LingeringProtocol

KEEP_ALIVE_SECONDS = 30
# After the drain nothing should be open any more; what is, is not waited for.
CLOSE_SECONDS = 2


class HttpServer(uvicorn.Server):
    """Serves one application on sockets that are already bound; stop it with `should_exit`."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LingeringProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are run.py's business: they start a drain, not a shutdown."""
        yield

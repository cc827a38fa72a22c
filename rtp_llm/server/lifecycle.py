# SPDX-License-Identifier: Apache-2.0
"""The life of the HTTP process: load, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time

import uvloop

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineStartError, describe_memory_error, log_line
from rtp_llm.interrupts import EXIT_INTERRUPTED
from rtp_llm.server.app import build_app
from rtp_llm.server.banner import Start
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.http.listener import url_of
from rtp_llm.server.http.log import announce
from rtp_llm.server.http.shutdown import POLL_SECONDS, StopSignals, drain
from rtp_llm.server.http.uvicorn_server import HttpServer
from rtp_llm.server.offload.preprocessor import Preprocessor
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.text.model_files import ModelFilesError
from rtp_llm.text.tokenizer import Tokenizer

# How long a server whose engine died still answers (503), so that its clients and probes learn why.
DEATH_SECONDS = 3.0
CLOSE_SECONDS = 5.0

_log = logging.getLogger("rtp_llm.server")


def run_lifecycle(
    settings: Settings, engine: EngineInterface, listener: socket.socket, began: float
) -> int:
    """Run the server on `listener` with an engine process; return the process's exit code.

    `began`: time.monotonic() at the start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Lifecycle(settings, engine, listener, began).run())


class _Lifecycle:
    def __init__(
        self, settings: Settings, engine: EngineInterface, listener: socket.socket, began: float
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._listener = listener
        self._preprocessor = Preprocessor(settings)
        self._state = ServerState(settings, engine, self._preprocessor)
        self._server = HttpServer(build_app(self._state), settings)
        self._state.metrics.watch_connections(self._server.connections)
        self._signals = StopSignals(_log)
        self._began = began

    async def run(self) -> int:
        self._signals.listen()
        self._engine.on_log = log_line
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            code = await self._load()
            if code is None:
                code = await self._serve_until_stopped()
        finally:
            self._server.should_exit = True
            await asyncio.wait({serving}, timeout=CLOSE_SECONDS)
            await self._preprocessor.close()
            if self._state.telemetry is not None:
                await asyncio.to_thread(self._state.telemetry.close)
            await self._engine.close(0.0 if self._signals.hurry else CLOSE_SECONDS)
        return self._signals.exit_code(code)

    # -- loading -------------------------------------------------------------------------------

    async def _load(self) -> int | None:
        """Load engine and tokenizer concurrently; returns an exit code if that fails or stops."""
        self._preprocessor.start()
        loading = asyncio.gather(
            self._engine.start(self._settings),
            asyncio.to_thread(
                Tokenizer.from_folder, self._settings.model, self._settings.chat_template
            ),
        )
        while not loading.done():
            await asyncio.wait({loading}, timeout=POLL_SECONDS)
            if self._signals.stop.is_set() and not loading.done():
                loading.cancel()
                await asyncio.wait({loading})
                return EXIT_INTERRUPTED if self._signals.first == signal.SIGINT else 0
        try:
            ready, tokenizer = loading.result()
            self._state.open(tokenizer)
        except (EngineStartError, ModelFilesError, SettingsError) as error:
            _log.error("cannot serve %s: %s", self._settings.model, error)
            return 1
        except MemoryError:
            words = describe_memory_error("reading the tokenizer")
            _log.error("cannot serve %s: %s", self._settings.model, words)
            return 1
        # Loaded objects are permanent; a garbage collection of them all would stall every stream.
        gc.freeze()
        source, seconds = tokenizer.chat_template_source, time.monotonic() - self._began
        start = Start(ready, source, self._state.syntax, seconds)
        url = url_of(self._listener, self._settings)
        announce(
            self._settings.log_format,
            start.text(self._settings, url),
            **start.fields(self._settings, url),
        )
        return None

    # -- serving and stopping ------------------------------------------------------------------

    async def _serve_until_stopped(self) -> int:
        while not self._signals.stop.is_set():
            if self._state.phase == "engine_dead":
                return await self._bury()
            await asyncio.sleep(POLL_SECONDS)
        await self._drain()
        if self._state.phase == "engine_dead":
            _log.error("%s It died while the server drained.", self._state.reason)
            return 1
        return 0

    async def _bury(self) -> int:
        _log.error(
            "%s The server answers 503 for %.0f s, then exits with code 1.",
            self._state.reason,
            DEATH_SECONDS,
        )
        deadline = time.monotonic() + DEATH_SECONDS
        while time.monotonic() < deadline and not self._signals.stop.is_set():
            await asyncio.sleep(POLL_SECONDS)
        return 1

    async def _drain(self) -> None:
        """Let open answers finish for up to shutdown_timeout, cut the rest, and log the outcome."""
        self._state.start_draining()
        seconds = self._settings.shutdown_timeout
        cut = await drain(self._state, seconds, self._signals, _log)
        self._state.metrics.cut.inc(cut)

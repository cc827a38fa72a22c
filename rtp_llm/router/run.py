# SPDX-License-Identifier: Apache-2.0
"""The router's process: watch the workers, forward requests, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl
from collections.abc import Callable, Sequence

from rtp_llm.config.roles import check_router
from rtp_llm.config.settings import Settings
from rtp_llm.interrupts import EXIT_INTERRUPTED
from rtp_llm.router.health import PROBE_SECONDS, watch
from rtp_llm.router.models import ask_for_models, warn_of_several
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers
from rtp_llm.server.http.listener import bind, close, url_of
from rtp_llm.server.http.log import announce, configure_logging
from rtp_llm.server.http.request_headers import with_cors
from rtp_llm.server.http.shutdown import POLL_SECONDS, StopSignals, drain
from rtp_llm.server.http.tls import load_authorities
from rtp_llm.server.http.uvicorn_server import HttpServer

_logger = logging.getLogger("rtp_llm.router")
MODELS_SECONDS = 10.0
AWAITED_SECONDS = 10.0


def route(settings: Settings) -> int:
    """Forward requests until a signal, drain the open ones, and return the exit code.

    0 after a clean stop, 128 + n after a second signal. Raises SettingsError or StartError before
    anything was started.
    """
    check_router(settings)
    workers = workers_of(settings)
    listener = bind(settings)
    queue = configure_logging(settings.log_level, settings.log_format)
    try:
        return asyncio.run(serve_router(settings, workers, listener))
    finally:
        close(listener)
        queue.stop()


def workers_of(settings: Settings) -> Workers:
    """The workers that the settings name.

    Raises:
        SettingsError, StartError: an address or a certificate cannot be used.
    """
    tls = None
    if settings.worker_ca_certs is not None:
        tls = ssl.create_default_context()
        load_authorities(tls, "worker_ca_certs", settings.worker_ca_certs)
    return Workers([word.strip() for word in settings.workers.split(",") if word.strip()], tls)


async def serve_router(
    settings: Settings,
    workers: Workers,
    listener: socket.socket,
    pending: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Serve until a signal; returns the exit code: 130 if Ctrl-C came before a worker was healthy.

    It listens at once and is ready with the first healthy worker. ``pending`` describes the
    workers that are not ready, by default from their health.
    """
    proxy, signals = Proxy(workers, settings), StopSignals(_logger)
    server = server_of(proxy, settings)
    signals.listen()
    watching = [asyncio.create_task(watch(worker)) for worker in workers.all]
    watching.append(asyncio.create_task(learn_models(workers, settings.api_key)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url, log_format = url_of(listener, settings), settings.log_format
    names = ", ".join(worker.url for worker in workers.all)
    text = f"RTP-LLM router listens: {url}\n  before {names}"
    announce(log_format, text, url=url, workers=names)
    ready = asyncio.create_task(_announce_ready(workers, url, log_format))
    watching += [ready, asyncio.create_task(_log_pending(pending or workers.pending, ready))]
    await signals.stop.wait()
    was_ready = ready.done() or workers.any_healthy
    proxy.start_draining()
    # Keep watching the workers: the answers of one that stops now have to end, too.
    await drain(proxy, settings.shutdown_timeout, signals, _logger)
    server.should_exit = True
    await serving
    for task in watching:
        task.cancel()
    interrupted = signals.first == signal.SIGINT and not was_ready
    return signals.exit_code(EXIT_INTERRUPTED if interrupted else 0)


async def _announce_ready(workers: Workers, url: str, log_format: str) -> None:
    """Announce that the router is ready, as soon as a worker is healthy."""
    while not workers.any_healthy:
        await asyncio.sleep(POLL_SECONDS)
    announce(log_format, f"RTP-LLM router is ready: {url}", url=url)


async def _log_pending(pending: Callable[[], Sequence[str]], ready: asyncio.Future[None]) -> None:
    """Log the awaited workers every ten seconds; once the router is ready, only changes."""
    told: Sequence[str] = ()
    while True:
        await asyncio.sleep(AWAITED_SECONDS)
        now = pending()
        if now and not (ready.done() and now == told):
            _logger.info("waiting for %s", "; ".join(now))
        told = now


def server_of(proxy: Proxy, settings: Settings) -> HttpServer:
    """The HTTP server of the proxy; its connections appear in the proxy's metrics."""
    # Each connection of a client may need one to a worker.
    server = HttpServer(with_cors(proxy, settings), settings, per_connection=2)
    proxy.metrics.watch_connections(server.connections)
    return server


async def learn_models(workers: Workers, key: str | None) -> None:
    """Query the models of each healthy worker: at once if they are unknown or the worker came
    back, possibly with another model, otherwise from time to time."""
    queried_at: dict[str, float] = {}
    told: frozenset[str] = frozenset()
    clock = asyncio.get_running_loop().time
    while True:
        for worker in workers.all:
            seconds = PROBE_SECONDS if worker.models is None else MODELS_SECONDS
            due = clock() >= queried_at.get(worker.url, -math.inf) + seconds
            if not worker.healthy:
                queried_at.pop(worker.url, None)
            elif due:
                queried_at[worker.url] = clock()
                await ask_for_models(worker, key)
        told = warn_of_several(workers, told)
        await asyncio.sleep(PROBE_SECONDS)

"""The router's process: watch the workers, forward requests, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import math
import socket

import h11

from rtp_llm.config.roles import check_router
from rtp_llm.config.settings import Settings
from rtp_llm.router.models import ask_for_models, warn_of_several
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.upstream import Asked, call_upstream
from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.server.http.log import announce, configure_logging
from rtp_llm.server.http.request_headers import with_cors
from rtp_llm.server.http.shutdown import StopSignals, drain
from rtp_llm.server.http.uvicorn_server import HttpServer

_logger = logging.getLogger("rtp_llm.router")
PROBE_SECONDS = 0.5
MODELS_SECONDS = 10.0
_PROBE_TIMEOUT_SECONDS = 2.0


def route(settings: Settings) -> int:
    """Forward requests until a signal, let open ones end; return the exit code.

    0 after a clean stop, 128 + n after a second signal. Raises SettingsError or StartError before
    anything was started.
    """
    check_router(settings)
    workers = Workers([word.strip() for word in settings.workers.split(",") if word.strip()])
    listener = bind(settings)
    queue = configure_logging(settings.log_level, settings.log_format)
    try:
        return asyncio.run(serve_router(settings, workers, listener))
    finally:
        listener.close()
        queue.stop()


async def serve_router(settings: Settings, workers: Workers, listener: socket.socket) -> int:
    """Until a signal; the exit code."""
    proxy, signals = Proxy(workers, settings), StopSignals(_logger)
    server = server_of(proxy, settings)
    signals.listen()
    watching = [asyncio.create_task(watch(worker)) for worker in workers.all]
    watching.append(asyncio.create_task(learn_models(workers, settings.api_key)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    names = ", ".join(worker.url for worker in workers.all)
    url = url_of(listener)
    text = f"RTP-LLM router is ready: {url}\n  before {names}"
    announce(settings.log_format, text, url=url, workers=names)
    await signals.stop.wait()
    proxy.start_draining()
    # The workers are watched on: one that stops ends its answers now, too.
    await drain(proxy, settings.shutdown_timeout, signals, _logger)
    server.should_exit = True
    await serving
    for task in watching:
        task.cancel()
    return signals.exit_code(0)


def server_of(proxy: Proxy, settings: Settings) -> HttpServer:
    """What the proxy is served by; its connections are in the proxy's metrics."""
    server = HttpServer(with_cors(proxy, settings), settings)
    proxy.metrics.watch_connections(server.connections)
    return server


async def watch(worker: Worker) -> None:
    """Ask for its health again and again."""
    while True:
        status = await probe(worker)
        worker.unanswered = 0 if status else worker.unanswered + 1
        healthy = status == 200
        if healthy != worker.healthy:
            _logger.info("%s %s", worker.url, "takes requests" if healthy else "takes none")
        worker.healthy = healthy
        await asyncio.sleep(PROBE_SECONDS)


async def learn_models(workers: Workers, key: str | None) -> None:
    """Ask for the models of each that is well: at once where they are not known or it comes back,
    maybe with another one, else now and then."""
    asked_at: dict[str, float] = {}
    told: frozenset[str] = frozenset()
    clock = asyncio.get_running_loop().time
    while True:
        for worker in workers.all:
            seconds = PROBE_SECONDS if worker.models is None else MODELS_SECONDS
            due = clock() >= asked_at.get(worker.url, -math.inf) + seconds
            if not worker.healthy:
                asked_at.pop(worker.url, None)
            elif due:
                asked_at[worker.url] = clock()
                await ask_for_models(worker, key)
        told = warn_of_several(workers, told)
        await asyncio.sleep(PROBE_SECONDS)


async def probe(worker: Worker) -> int | None:
    """200 where it takes requests, another status where it does not; None: no answer.

    It has its two seconds however many questions it left unanswered: else one that is slow now
    would never be back.
    """
    asked, patience = Asked("GET", b"/health", [], b""), _PROBE_TIMEOUT_SECONDS
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
            async for event in call_upstream(worker, asked, patience, most_unanswered=math.inf):
                if event["type"] == "http.response.start":
                    return int(event["status"])
    except (OSError, h11.RemoteProtocolError):  # TimeoutError is one
        pass
    return None

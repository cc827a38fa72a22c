# SPDX-License-Identifier: Apache-2.0
"""A worker that answers before it has the whole request is heard, and is asked again."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from rtp_llm.config.settings import Settings
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers
from rtp_llm.server.http.asgi import send_error, too_large
from rtp_llm.server.http.uvicorn_server import HttpServer

BODY = b"x" * 2**25  # more than sockets hold


@asynccontextmanager
async def http(app: ASGIApp) -> AsyncIterator[str]:
    """The address of an application."""
    server = HttpServer(app, Settings())
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def plain(answer: Callable[..., Awaitable[None]]) -> AsyncIterator[str]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    """A server as ours is, with a lower limit than the router's."""
    await send_error(send, too_large(1000))


async def refusing_and_deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads nothing of a body, ever."""
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    body = b'{"error":{"code":"request_too_large"}}'
    writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize("worker", [http(refusing), plain(refusing_and_deaf)], ids=["ours", "deaf"])
def test_a_refusal_comes_through_and_the_worker_stays(worker: Any) -> None:
    async def play() -> None:
        async with worker as url:
            workers = Workers([url])
            (only,) = workers.all
            only.healthy = True
            async with http(Proxy(workers, Settings())) as router, httpx.AsyncClient() as client:
                for _ in range(3):
                    answer = await client.post(f"{router}/v1/completions", content=BODY, timeout=20)
                    assert answer.status_code == 413
                    assert json.loads(answer.content)["error"]["code"] == "request_too_large"
                    assert only.healthy and only.open_requests == 0

    asyncio.run(play())

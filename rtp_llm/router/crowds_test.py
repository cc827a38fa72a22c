# SPDX-License-Identifier: Apache-2.0
"""Limits of a router: requests, their bodies, and data that waits for a worker's socket."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.router import upstream as module
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.run import server_of
from rtp_llm.router.workers import Worker, Workers

BODY = 2**23  # bytes: more than sockets hold
MOST, CLIENTS = 4, 30


class Client:
    """A client that sends its body in two parts, the second on demand. ``sent``: its answer."""

    def __init__(self, proxy: Proxy, size: int) -> None:
        self.sent: list[Any] = []
        self._parts = [(b"x" * (size // 2), False), (b"x" * (size // 2), True)]
        self.goes_on, self._leaves = asyncio.Event(), asyncio.Event()
        scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x"}
        scope |= {"query_string": b"", "headers": []}
        self.task = asyncio.create_task(proxy(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._parts:
            await self._leaves.wait()
            return {"type": "http.disconnect"}
        body, last = self._parts.pop(0)
        if last:
            await self.goes_on.wait()
        return {"type": "http.request", "body": body, "more_body": not last}

    async def _send(self, event: Any) -> None:
        self.sent.append(event)

    async def leave(self) -> None:
        self.goes_on.set()
        self._leaves.set()
        await self.task

    def was_refused(self) -> bool:
        start, body = self.sent
        assert json.loads(body["body"])["error"]["code"] == "overloaded"
        return bool(start["status"] == 503 and (b"retry-after", b"1") in start["headers"])


@pytest.mark.parametrize(
    "bound", [{"max_open_requests": MOST}, {"max_open_bytes": MOST * BODY + BODY // 4}]
)
def test_a_router_holds_so_many_requests(
    bound: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a body, a whole one and one that its worker does not take count alike."""
    writers: list[asyncio.StreamWriter] = []
    connect = module._connect

    async def connected(worker: Worker) -> Any:
        reader, writer = await connect(worker)
        writers.append(writer)
        return reader, writer

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:  # nobody accepts
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            workers = Workers([f"http://127.0.0.1:{deaf.getsockname()[1]}"])
            workers.all[0].healthy = True
            proxy = Proxy(workers, Settings(**{"max_request_bytes": BODY, **bound}))
            first = [Client(proxy, BODY) for _ in range(MOST)]
            for client in first:
                client.goes_on.set()
            while len(writers) < MOST or not all(_waits(each) for each in writers):
                await asyncio.sleep(0.001)
            others = [Client(proxy, BODY) for _ in range(CLIENTS)]
            await asyncio.gather(*(client.task for client in others))
            assert all(client.was_refused() for client in others)
            assert proxy._open.count == MOST and proxy._open.bytes == MOST * BODY
            for writer in writers:
                assert writer.transport.get_write_buffer_size() <= 3 * 2**16
            for client in first:
                assert not client.sent
                await client.leave()
            assert proxy._open.count == proxy._open.bytes == 0

    def _waits(writer: asyncio.StreamWriter) -> bool:
        return writer.transport.get_write_buffer_size() > 0

    monkeypatch.setattr(module, "_connect", connected)
    asyncio.run(play())


def test_clients_that_say_half_of_their_bodies_are_not_forwarded() -> None:
    async def play() -> None:
        proxy = Proxy(Workers(["http://127.0.0.1:1"]), Settings(max_open_requests=MOST))
        slow = [Client(proxy, 1000) for _ in range(CLIENTS)]
        await asyncio.gather(*(client.task for client in slow[:-MOST]))
        assert all(client.was_refused() for client in slow[:-MOST]), "the oldest make way"
        assert proxy._open.bytes == MOST * 500
        for client in slow[-MOST:]:
            await client.leave()
            assert client.sent[0]["status"] == 503  # nobody is behind the router
        assert proxy._open.count == proxy._open.bytes == 0

    asyncio.run(play())


def test_metrics_count_connections_open_and_refused() -> None:
    async def play() -> None:
        settings = Settings(max_headers=20)
        server = server_of(Proxy(Workers(["http://127.0.0.1:1"]), settings), settings)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        async with httpx.AsyncClient() as client:
            many = {f"x-{number}": "" for number in range(30)}
            assert (await client.get(url, headers=many)).status_code == 431
            lines = (await client.get(url)).text.splitlines()
        assert 'rtp_llm_router_refused_connections_total{reason="headers"} 1.0' in lines
        assert "rtp_llm_router_open_connections 1.0" in lines
        server.should_exit = True
        await serving

    asyncio.run(play())

# SPDX-License-Identifier: Apache-2.0
"""Scripted workers, and a proxy in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from rtp_llm.config.settings import Settings
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers

Behaviour = Callable[["Fake", asyncio.StreamWriter], Awaitable[None]]


class Fake:
    """A worker that reads a request and then does what it was made for."""

    def __init__(self, behave: Behaviour) -> None:
        self.requests = 0
        self._behave = behave

    async def __aenter__(self) -> Fake:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            self.requests += 1
            await self._behave(self, writer)
        except asyncio.IncompleteReadError:  # somebody looked whether it is there
            pass
        finally:
            writer.close()


async def well(fake: Fake, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine")
    await writer.drain()


class Case:
    """A proxy before workers that are asked in their order; all of them count as healthy."""

    def __init__(self, fakes: list[Fake]) -> None:
        self.fakes = fakes
        self.workers = Workers([fake.url for fake in fakes])
        self.proxy = Proxy(self.workers, Settings(answer_timeout=60))
        self.heal()

    def heal(self) -> None:
        for number, worker in enumerate(self.workers.all):
            worker.healthy = True
            worker.open_bytes = 10**6 * number

    @property
    def requests(self) -> list[int]:
        return [fake.requests for fake in self.fakes]

    async def ask(
        self, body: bytes = b"{}", path: str = "/v1/completions", method: str = "POST", **scope: Any
    ) -> tuple[int, bytes]:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(event: Any) -> None:
            sent.append(event)

        request = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        request |= {"query_string": b"", "headers": [], "scheme": "http", "server": ("here", 8088)}
        await asyncio.wait_for(self.proxy({**request, **scope}, receive, send), 60)
        assert not sent[-1].get("more_body")
        return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])

    def metric(self, name: str) -> list[str]:
        lines = self.proxy.metrics.render().decode().splitlines()
        return [line for line in lines if line.startswith(f"rtp_llm_router_{name}{{")]


def play(test: Callable[[Case], Awaitable[None]], *behaviours: Behaviour) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            fakes = [await stack.enter_async_context(Fake(each)) for each in behaviours]
            await test(Case(fakes))

    asyncio.run(run())

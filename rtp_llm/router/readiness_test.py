# SPDX-License-Identifier: Apache-2.0
"""A router listens at once, is ready with its first worker, and says what it waits for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.router import run
from rtp_llm.router.health import Health, health_words, probe
from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.router.received import Received, until
from rtp_llm.testing.router.workers import Fake

LOADING = {"status": "starting", "reason": "x", "loading": {"done": 250_000_000, "total": 10**9}}


class Server:
    """Answers every request with its status and body of now."""

    status = 503
    body: Any = LOADING

    async def answer(self, _: Fake, writer: asyncio.StreamWriter) -> None:
        text = msgspec.json.encode(self.body)
        head = f"HTTP/1.1 {self.status} Any\r\ncontent-length: {len(text)}\r\n\r\n"
        writer.write(head.encode() + text)
        await writer.drain()


@asynccontextmanager
async def router_before(*urls: str) -> AsyncIterator[tuple[str, asyncio.Task[int]]]:
    """Its address, and its exit code."""
    with bind(Settings(port=0)) as listener:
        serving = run.serve_router(Settings(port=0), Workers(urls), listener)
        yield url_of(listener, Settings()), asyncio.create_task(serving)


@pytest.fixture
def received(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Received:
    return Received(capsys, caplog, monkeypatch)


def test_ready_is_said_when_the_first_worker_is(received: Received) -> None:
    server = Server()

    async def play() -> None:
        with kept_port() as port:  # where nobody is
            other = f"http://127.0.0.1:{port}"
            async with Fake(server.answer) as fake, router_before(fake.url, other) as (url, code):
                nobody = f"{other} (no answer: Connection refused)"
                both = f"{fake.url} (loading its model: 25%, 250 of 1,000 MB); {nobody}"
                await until(lambda: received.pending.count(both) >= 2)
                listens = f"RTP-LLM router listens: {url}\n  before {fake.url}, {other}\n"
                assert received.printed == listens
                async with httpx.AsyncClient() as client:
                    assert (await client.get(f"{url}/health")).status_code == 503
                server.status = 200
                await until(lambda: received.printed != listens)
                assert received.printed == f"{listens}RTP-LLM router is ready: {url}\n"
                # From now on only what has changed.
                await until(lambda: received.pending[-1] == nobody)
                count = len(received.pending)
                await asyncio.sleep(0.1)
                assert len(received.pending) == count
                os.kill(os.getpid(), signal.SIGINT)
                assert await code == 0

    asyncio.run(play())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_before_that_ends_it(received: Received, number: int, code: int) -> None:
    async def play() -> None:
        async with Fake(Server().answer) as fake, router_before(fake.url) as (_, found):
            await until(lambda: received.pending)
            os.kill(os.getpid(), number)
            assert await found == code

    asyncio.run(play())
    assert "is ready" not in received.printed


def test_a_body_of_health_that_does_not_end_is_not_kept() -> None:
    server = Server()
    server.body = {"status": "x" * 200_000}

    async def play() -> Health:
        async with Fake(server.answer) as fake:
            return await probe(Worker.parse(fake.url))

    assert asyncio.run(play()) == (503, "its /health answers 503")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b'{"status":"starting","reason":"The model\\nis loading"}',
            "starting: The model is loading",
        ),
        (b'{"status":"starting","loading":{"done":0,"total":0}}', "starting"),
        (b'{"status":"no worker","workers":0}', "no worker"),
        (b"", "its /health answers 502"),
        (b'{"status":["of another make"]}', "its /health answers 502"),
    ],
)
def test_words_of_health(body: bytes, words: str) -> None:
    assert health_words(502, body) == words

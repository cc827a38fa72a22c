# SPDX-License-Identifier: Apache-2.0
"""No client waits for ever: workers that stop, say nothing, take nothing or vanish are given up."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.router import health
from rtp_llm.router import upstream as module
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MAX_AT_ONCE = 0.02  # seconds that pass from one look at the clock to the next
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class StallingLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while the process has to wait for a core: whoever is given up here
    said nothing for as long as everybody else could."""

    def __init__(self) -> None:
        self._seen = self._shown = time.monotonic()
        super().__init__()
        self._tick()

    def _tick(self) -> None:
        """Look at the clock, whatever else there is to do."""
        self.call_later(MAX_AT_ONCE / 4, self._tick)

    def time(self) -> float:
        now = time.monotonic()
        self._shown += min(now - self._seen, MAX_AT_ONCE)
        self._seen = now
        return self._shown


def play_out(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=StallingLoop) as runner:
        runner.run(play())


@asynccontextmanager
async def worker(handle: Handler) -> AsyncIterator[str]:
    """The address of a server; ``handle`` gets the first line and header of each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def answering(head: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"fine")
    await writer.drain()


async def stopped(head: bytes, reader: asyncio.StreamReader, writer: Any) -> None:
    """Takes connections and nothing else, for its health too."""
    await reader.read()


async def deaf(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers when it is asked for its health."""
    await (answering if b"/health" in head else stopped)(head, reader, writer)


async def halfway(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stops amid its answer, or says whatever it says for its health."""
    writer.write(HEAD + b"fi")
    await writer.drain()
    await reader.read()


@asynccontextmanager
async def proxy_of(*urls: str, answer_timeout: float = 60) -> AsyncIterator[tuple[Proxy, Workers]]:
    """A proxy whose workers are watched, and were all well a moment ago."""
    workers = Workers(urls)
    for each in workers.all:
        each.healthy = True
    watching = [asyncio.create_task(health.watch(each)) for each in workers.all]
    try:
        yield Proxy(workers, Settings(answer_timeout=answer_timeout)), workers
    finally:
        for task in watching:
            task.cancel()


async def ask(
    proxy: Proxy, body: bytes = b"{}", headers: list[Any] | None = None
) -> tuple[int, bytes]:
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b""}
    await asyncio.wait_for(proxy({**scope, "headers": headers or []}, receive, send), 20)
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(health, "_PROBE_TIMEOUT_SECONDS", 0.1)


def test_one_that_stopped_is_given_up_and_its_request_not_sent_to_another_one() -> None:
    async def play() -> None:
        async with (
            worker(stopped) as bad,
            worker(answering) as good,
            proxy_of(bad, good) as (proxy, workers),
        ):
            workers.all[1].healthy = False  # so that the first one is asked
            status, body = await ask(proxy)
            assert (status, json.loads(body)["error"]["code"]) == (502, "worker_failed")
            assert workers.all[0].unanswered >= module.MAX_UNANSWERED
            assert not workers.all[0].healthy
            assert workers.all[0].open_requests == 0
            assert await ask(proxy) == (200, b"fine")

    play_out(play)


def test_one_that_stopped_and_is_slow_now_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer takes longer than a look at the count of the unanswered."""

    async def slow(head: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5 * module._LOOK_SECONDS)
        await answering(head, reader, writer)

    async def play() -> None:
        async with worker(slow) as url:
            (again,) = Workers([url]).all
            again.unanswered = module.MAX_UNANSWERED
            assert (await health.probe(again)).status == 200

    monkeypatch.setattr(health, "_PROBE_TIMEOUT_SECONDS", 20)
    play_out(play)


def test_one_that_lives_and_owes_an_answer_has_its_time() -> None:
    async def play() -> None:
        async with worker(deaf) as url, proxy_of(url, answer_timeout=0.3) as (proxy, workers):
            status, body = await ask(proxy)
            error = json.loads(body)["error"]
            assert (status, error["code"], error["type"]) == (504, "worker_timeout", "server_error")
            assert "nothing came for 0.3 s (see --answer-timeout)" in error["message"]
            assert workers.all[0].healthy and workers.all[0].open_requests == 0

    play_out(play)


def test_one_that_is_slow_and_lives_is_waited_for() -> None:
    """Each piece begins its time anew: two seconds in all."""

    async def slow(head: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
        if b"/health" in head:
            await answering(head, reader, writer)
            return
        for piece in (HEAD[:5], HEAD[5:], b"f", b"in", b"e"):
            await asyncio.sleep(0.4)
            writer.write(piece)
            await writer.drain()

    async def play() -> None:
        async with worker(slow) as url, proxy_of(url, answer_timeout=1.5) as (proxy, _):
            assert await ask(proxy) == (200, b"fine")

    play_out(play)


@pytest.mark.parametrize("answer_timeout", [60, 0.3])
def test_an_answer_that_stops_is_cut_off(answer_timeout: float) -> None:
    """By the count of unanswered questions, or by the time for the next byte."""

    async def stop(head: bytes, reader: asyncio.StreamReader, writer: Any) -> None:
        if b"/health" in head:
            await (stopped if answer_timeout > 1 else answering)(head, reader, writer)
        else:
            await halfway(head, reader, writer)

    async def play() -> None:
        async with (
            worker(stop) as url,
            proxy_of(url, answer_timeout=answer_timeout) as (proxy, workers),
        ):
            status, body = await ask(proxy)
            error = json.loads(body)["error"]
            assert (status, error["code"]) in [(502, "worker_failed"), (504, "worker_timeout")]
            words = r"answers nothing any more|nothing came for 0\.3 s"
            assert re.search(words, error["message"])
            assert workers.all[0].open_requests == 0

    play_out(play)


def test_one_that_reads_no_request_is_given_up() -> None:
    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # nobody accepts
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with proxy_of(url) as (proxy, workers):
                status, _ = await ask(proxy, b"x" * (7 * 2**20))
                assert status == 502 and not workers.all[0].healthy

    play_out(play)


def test_what_is_no_request_is_the_clients_fault() -> None:
    async def play() -> None:
        async with worker(answering) as url, proxy_of(url) as (proxy, workers):
            status, body = await ask(proxy, headers=[(b"x-name", b"a\x00b")])
            assert status == 400 and "no HTTP request" in json.loads(body)["error"]["message"]
            assert workers.all[0].healthy

    play_out(play)


@pytest.mark.parametrize("url", ["http://[::1]:80", "http://host:80"])
def test_a_worker_is_called_by_its_own_name(url: str) -> None:
    """With the brackets that an IPv6 address has in a Host header."""
    head = module._head(Workers([url]).all[0], module.Query("GET", b"/", [], b""))
    assert dict(head.headers)[b"host"] == url.removeprefix("http://").encode()

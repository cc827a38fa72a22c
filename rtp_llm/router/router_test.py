# SPDX-License-Identifier: Apache-2.0
"""Whom the router asks, and that answers, failures and departures pass through it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.router.health import probe
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.requested import COMPARED_BYTES, read_requested
from rtp_llm.router.run import route
from rtp_llm.router.workers import PIECE_BYTES, Visit, Worker, Workers, pieces_of
from rtp_llm.testing.kept_port import kept_port

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeServer:
    """Counts requests; answers each with its name, in two pieces, or as configured."""

    url = ""

    def __init__(self, name: str, answer: Answer | None = None) -> None:
        self.name, self._answer = name, answer or self._in_pieces
        self.bodies: list[bytes] = []
        self.closed = asyncio.Event()

    async def __aenter__(self) -> FakeServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.bodies.append(await reader.readexactly(length))
        await self._answer(reader, writer)
        writer.close()

    async def _in_pieces(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in (self.name, "!"):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece.encode()))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def silent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begins an answer and waits for the other side to go."""
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        await reader.read()
        self.closed.set()


async def ask(
    proxy: Proxy, prompt: str, leave: asyncio.Event | None = None, path: str = "/v1/completions"
) -> tuple[int, bytes]:
    """(status, body) of a request through the proxy; ``leave`` set: the client goes away."""
    body = json.dumps({"prompt": prompt}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    method = "GET" if path == "/health" else "POST"
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    await proxy({**scope, "query_string": b"", "headers": []}, receive, send)
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])


def proxy_of(*servers: FakeServer, answer_timeout: float = 60) -> tuple[Proxy, Workers]:
    workers = Workers([server.url for server in servers])
    for worker in workers.all:
        worker.healthy = True
    return Proxy(workers, Settings(answer_timeout=answer_timeout)), workers


def test_answers_pass_through() -> None:
    async def play() -> None:
        async with FakeServer("one") as server:
            proxy, workers = proxy_of(server)
            assert await ask(proxy, "hello") == (200, b"one!")
            assert json.loads(server.bodies[0]) == {"prompt": "hello"}
            assert workers.all[0].open_requests == workers.all[0].open_bytes == 0
            assert await ask(proxy, "", path="/health") == (200, b'{"status":"ready","workers":1}')

    asyncio.run(play())


def test_a_prompt_goes_where_its_beginning_is_known() -> None:
    async def play() -> None:
        async with FakeServer("one") as one, FakeServer("two") as two:
            proxy, _ = proxy_of(one, two)
            stories = [f"{number} " * PIECE_BYTES for number in range(8)]
            first = [(await ask(proxy, story))[1] for story in stories]
            assert set(first) == {b"one!", b"two!"}  # both have something to do
            for story, name in zip(stories, first, strict=True):
                assert (await ask(proxy, story + "and then?"))[1] == name

    asyncio.run(play())


def test_load_outweighs_a_short_prefix() -> None:
    workers = Workers(["http://a:1", "http://b:2"])
    busy, free = workers.all
    busy.healthy = free.healthy = True
    pieces = pieces_of(b"x" * PIECE_BYTES)
    busy.remember(pieces)
    assert workers.choose(pieces) is busy
    with Visit(busy, pieces_of(b"y" * 40 * PIECE_BYTES)):
        assert workers.choose(pieces) is free
    assert workers.choose(pieces) is busy
    assert workers.choose(pieces, without=[busy]) is free
    free.healthy = busy.healthy = False
    assert workers.choose(pieces) is None


def test_a_dead_server_costs_no_request() -> None:
    async def play() -> None:
        async with FakeServer("two") as two:
            gone, too = FakeServer("gone"), FakeServer("gone, too")
            with kept_port() as port, kept_port() as other:  # where nobody is
                gone.url, too.url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
                proxy, workers = proxy_of(gone, too, two)
                for number in range(4):
                    assert await ask(proxy, f"hello {number}") == (200, b"two!")
                assert [worker.healthy for worker in workers.all] == [False, False, True]
                workers.all[2].healthy = False
                status, body = await ask(proxy, "hello")
                assert status == 503 and json.loads(body)["error"]["code"] == "no_worker"

    asyncio.run(play())


def refuse(status: int, parts: int = 1) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} No\r\nretry-after: 3\r\ncontent-length: {5 * parts}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(parts):
            writer.write(b"later")
            await writer.drain()
            await asyncio.sleep(0.001)  # a part each

    return answer


@pytest.mark.parametrize("status", [429, 503])
def test_another_one_is_asked_when_one_takes_no_requests(status: int) -> None:
    async def play() -> None:
        async with FakeServer("a", refuse(status)) as full, FakeServer("two") as free:
            proxy, workers = proxy_of(full, free)
            for number in range(4):
                assert await ask(proxy, f"hello {number}") == (200, b"two!")
            assert full.bodies and workers.all[0].healthy
            assert [worker.open_requests for worker in workers.all] == [0, 0]
            # Nobody else: the client reads what it said.
            free._answer = refuse(500)
            assert (await ask(proxy, "hello"))[0] == 500
            workers.all[1].healthy = False
            assert await ask(proxy, "hello") == (status, b"later")

    asyncio.run(play())


def test_a_refusal_that_does_not_end_is_not_kept() -> None:
    async def play() -> None:
        async with FakeServer("a", refuse(503, parts=1000)) as endless, FakeServer("two") as two:
            proxy, workers = proxy_of(endless, two)
            assert await ask(proxy, "hello") == (200, b"two!")
            assert not workers.all[0].healthy

    asyncio.run(play())


def test_a_client_that_leaves_ends_its_request() -> None:
    async def play() -> None:
        server = FakeServer("slow")
        server._answer = server.silent
        async with server:
            proxy, workers = proxy_of(server)
            leave = asyncio.Event()
            asking = asyncio.create_task(ask(proxy, "hello", leave))
            while not server.bodies:
                await asyncio.sleep(0.01)
            assert workers.all[0].open_requests == 1
            leave.set()
            await asyncio.wait_for(asking, 10)
            await asyncio.wait_for(server.closed.wait(), 10)
            assert workers.all[0].open_requests == 0

    asyncio.run(play())


def test_half_a_request_is_not_forwarded() -> None:
    async def play() -> None:
        async with FakeServer("one") as server:
            proxy, _ = proxy_of(server)
            messages = [
                {"type": "http.request", "body": b'{"prompt":', "more_body": True},
                {"type": "http.disconnect"},
            ]

            async def receive() -> Any:
                return messages.pop(0)

            async def send(event: Any) -> None:
                raise AssertionError(event)

            scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x"}
            await proxy({**scope, "query_string": b"", "headers": []}, receive, send)
            assert not server.bodies

    asyncio.run(play())


def test_a_body_that_is_too_long_is_refused_as_the_server_does() -> None:
    async def play() -> None:
        async with FakeServer("one") as server:
            _, workers = proxy_of(server)
            status, body = await ask(Proxy(workers, Settings(max_request_bytes=100)), "x" * 100)
            assert status == 413 and json.loads(body)["error"]["code"] == "request_too_large"
            assert not server.bodies

    asyncio.run(play())


@pytest.mark.parametrize("body", [b'{"prompt":' + b"[" * 100_000, b'{"prompt":"\xff"}'])
def test_bodies_that_nothing_can_read_are_the_servers_business(body: bytes) -> None:
    assert read_requested(body).prompt == b""


def test_probes() -> None:
    async def play() -> None:
        async with FakeServer("one") as server:
            assert (await probe(Worker.parse(server.url))).status == 200
        with kept_port() as port:  # where nobody is
            nobody = Worker.parse(f"http://127.0.0.1:{port}")
            assert await probe(nobody) == (None, "no answer: Connection refused")

    asyncio.run(play())


def test_what_makes_a_prompt() -> None:
    def prompt_of(body: bytes) -> bytes:
        return read_requested(body).prompt

    assert prompt_of(b'{"prompt":"a","seed":1}') == prompt_of(b'{"seed":2,"prompt":"a"}')
    assert prompt_of(b'{"messages":[]}') == b"[]"
    assert prompt_of(b"no json") == prompt_of(b"[1]") == b""
    assert prompt_of(b'{"input":"a","instructions":"b"}') == b'"b""a"'
    assert prompt_of(b'{"input":[{"role":"user"}]}') == b'[{"role":"user"}]'
    assert prompt_of(b'{"messages":["m"],"system":"s"}') == b'"s"["m"]'
    assert pieces_of(b"a" * 600)[:2] == pieces_of(b"a" * 512)
    assert not {*pieces_of(b"a" * 512)} & {*pieces_of(b"a" * 512, b"sk-a")}
    requested = read_requested(b'{"input":"%b","instructions":"b"}' % (b"a" * COMPARED_BYTES))
    assert (len(requested.prompt), requested.length) == (COMPARED_BYTES, COMPARED_BYTES + 5)


def test_the_header_that_changes_makes_no_new_prompt() -> None:
    def prompt_of(number: int) -> bytes:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}
        system = [header, {"type": "text", "text": "You are an agent."}]
        return read_requested(json.dumps({"system": system, "messages": []}).encode()).prompt

    assert prompt_of(1) == prompt_of(2) and b"agent" in prompt_of(1)


@pytest.mark.parametrize(
    "workers",
    [
        "",
        "ftp://a:1",
        "http://a",
        "http://a:x",
        "http://a:0",
        "http://a..b:1",
        "http://a:1/v1",
        "http://me@a:1",
        "http://[a:1",
        "http://a:1,http://b:1,a:1",
    ],
)
def test_addresses_are_checked(workers: str) -> None:
    with pytest.raises(SettingsError, match="workers: "):
        route(Settings(workers=workers))

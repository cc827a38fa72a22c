# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from rtp_llm.client.http import ConnectError, HttpClient
from rtp_llm.testing.server.raw_server import (
    DONE,
    Request,
    chunk,
    event,
    raw_server,
    stream_head,
    with_length,
)
from rtp_llm.testing.server.serving import run


async def fetch(client: HttpClient, path: str = "/x", body: bytes = b"") -> tuple[int, bytes]:
    async with client.request("POST" if body else "GET", path, body) as response:
        return response.status, await response.read()


@run
async def test_connections_are_used_again() -> None:
    with raw_server(lambda request: [with_length(request.body or b"none")]) as server:
        client = HttpClient(f"{server.url}/base/", {"X-Own": "1"})
        assert await fetch(client, "/a") == (200, b"none")
        assert await fetch(client, "/b", b"text") == (200, b"text")
        await asyncio.gather(fetch(client), fetch(client))
        client.close()
    first, second, *both = server.requests
    assert (first.line, second.line) == ("GET /base/a HTTP/1.1", "POST /base/b HTTP/1.1")
    assert first.headers["x-own"] == "1" and first.headers["host"] == server.url[len("http://") :]
    assert (first.connection, second.connection) == (0, 0)
    assert {request.connection for request in both} == {0, 1}


@run
async def test_a_connection_that_the_server_has_closed_meanwhile() -> None:
    def once(request: Request) -> Iterator[bytes]:
        yield with_length(b"%d" % request.connection)
        yield b""  # no end: the server closes

    with raw_server(once) as server:
        client = HttpClient(server.url)
        assert await fetch(client) == (200, b"0")
        assert await fetch(client) == (200, b"1")


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ([b"HTTP/1.1 100 Continue\r\n\r\n", with_length(b"late")], b"late"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"to the ", b"end"], b"to the end"),
        ([stream_head(), chunk(b"in "), chunk(b"parts"), b"0\r\n\r\n"], b"in parts"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
def test_framing(parts: list[bytes], body: bytes) -> None:
    async def ask() -> None:
        with raw_server(lambda _: parts) as server:
            assert (await fetch(HttpClient(server.url)))[1] == body

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([b""], "closed the connection before"),
        ([with_length(b"whole")[:-2], b""], "closed the connection before"),
        ([stream_head(), chunk(b"a")], "closed the connection before"),
        ([b"SSH-2.0-OpenSSH_9\r\n"], "is not HTTP"),
    ],
)
def test_answers_that_break(parts: list[bytes], says: str) -> None:
    async def ask() -> None:
        with raw_server(lambda _: parts) as server, pytest.raises(ConnectionResetError, match=says):
            await fetch(HttpClient(server.url))

    asyncio.run(ask())


@run
async def test_nobody_listens() -> None:
    with raw_server(lambda _: []) as server:
        pass
    with pytest.raises(ConnectError):
        await fetch(HttpClient(server.url))


@pytest.mark.parametrize("url", ["localhost:80", "ftp://host", "http://", "/folder"])
def test_what_is_not_an_address(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an HTTP server"):
        HttpClient(url)


@run
async def test_leaving_an_answer_closes_its_connection() -> None:
    def endless(_: Request) -> Iterator[bytes]:
        yield stream_head()
        for number in itertools.count():
            yield event(number)
            time.sleep(0.002)

    with raw_server(endless) as server:
        client = HttpClient(server.url)
        async with client.request("GET", "/") as response:
            async for _ in response.chunks():
                break
        assert await asyncio.to_thread(server.left.wait, 30)


def test_parts_are_given_as_they_come() -> None:
    async def ask() -> None:
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(_: Request) -> Iterator[bytes]:
            yield stream_head() + event(1)
            asyncio.run_coroutine_threadsafe(arrived.wait(), loop).result(30)
            yield DONE

        with raw_server(slow) as server:
            async with HttpClient(server.url).request("GET", "/") as response:
                parts = response.chunks()
                assert await anext(parts) == b"data: 1\n\n"
                arrived.set()
                assert [part async for part in parts] == [b"data: [DONE]\n\n"]

    asyncio.run(ask())

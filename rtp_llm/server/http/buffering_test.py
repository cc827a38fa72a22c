# SPDX-License-Identifier: Apache-2.0
"""A body that is slow to come costs its bytes and a place, and no task that waits for it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import httpx
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.server.http import connections
from rtp_llm.server.http.connection import HttpProtocol
from rtp_llm.server.http.open_requests import OpenRequests
from rtp_llm.testing.server.connections import Listener, Wire
from rtp_llm.testing.server.serving import fake_engine, listening, run, wait_for
from rtp_llm.testing.server.slow_clients import SlowClient

GET = b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
SIZE, CLIENTS = 200_000, 50


def buffering(**settings: int) -> tuple[Listener, OpenRequests]:
    opened = OpenRequests(Settings(**settings))
    return Listener(opened), opened


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def status(wire: Wire) -> int:
    return int(wire.sent.split()[1])


@run
async def test_slow_bodies_have_no_tasks() -> None:
    listener, opened = buffering()
    listener.answer.set()
    clients = [listener.connect() for _ in range(CLIENTS)]
    for protocol, _ in clients:
        for piece in (HEAD[:20], HEAD[20:] + b"x", b"x" * 99_999):
            protocol.data_received(piece)
            await turns(2)
    assert not listener.scopes and not listener.server.tasks
    assert not any(wire.paused for _, wire in clients)
    assert len(opened.arriving) == CLIENTS and opened.bytes == CLIENTS * SIZE // 2
    for protocol, _ in clients:
        protocol.data_received(b"x" * (SIZE // 2))
    await turns(5 * CLIENTS)  # large bodies go on one by one
    assert listener.bodies == [SIZE] * CLIENTS
    assert all(status(wire) == 200 for _, wire in clients)
    assert not opened.arriving and opened.bytes == opened.count == 0


@pytest.fixture(name="_no_cycles")
def _no_cycles_fixture() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("sent", [b"", HEAD[:9], HEAD, GET], ids=["none", "head", "body", "whole"])
@run
async def test_nothing_is_left_of_a_client_that_went_away(sent: bytes, _no_cycles: None) -> None:
    """At once: cycles of thousands of connections would wait for the next collection."""
    listener, opened = buffering()
    listener.answer.set()

    def connect() -> weakref.ref[HttpProtocol]:
        protocol, wire = listener.connect()
        protocol.data_received(sent) if sent else None
        wire.closed = True  # as the loop has it
        asyncio.get_running_loop().call_later(0.05, protocol.connection_lost, None)
        return weakref.ref(protocol)

    left = connect()
    await asyncio.sleep(0.1)
    listener.scopes.clear()
    assert left() is None
    assert not opened.arriving and opened.bytes == opened.count == 0
    assert listener.abandoned == (sent == HEAD)


@run
async def test_a_late_body_is_refused_by_the_application() -> None:
    """So are those that make way; all in the application's words, and counted by it."""
    listener, opened = buffering(body_timeout=10, min_body_rate=1, max_open_requests=2)
    clients = [listener.connect() for _ in range(3)]
    for protocol, _ in clients:
        protocol.data_received(HEAD + b"x")
    await turns()
    assert status(clients[0][1]) == 503 and len(opened.arriving) == 2
    loop = asyncio.get_running_loop()
    later = loop.time() + 5
    loop.time = lambda: later  # type: ignore[method-assign]
    clients[1][0].data_received(b"x" * 9)
    listener.sweep(4)
    await turns()
    assert not clients[1][1].sent and not clients[2][1].sent
    listener.sweep(6)
    await turns()
    assert status(clients[2][1]) == 408 and b"--min-body-rate" in clients[2][1].sent
    assert not clients[1][1].sent, "enough of it came"
    assert len(opened.arriving) == 1 and opened.bytes == 10


@run
async def test_an_application_may_want_its_body_at_once() -> None:
    listener, opened = buffering(max_request_bytes=1000)
    (requested, _), (long, _) = listener.connect(), listener.connect()
    requested.data_received(HEAD.replace(b"/ ", b"/unbuffered ", 1))
    long.data_received(HEAD + b"x" * 1001)
    await turns()
    assert len(listener.scopes) == 2 and len(opened.arriving) == 2


@run
async def test_a_client_is_sent_100_continue() -> None:
    listener, _ = buffering()
    listener.answer.set()
    protocol, wire = listener.connect()
    protocol.data_received(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n" and not listener.scopes
    protocol.data_received(b"x" * SIZE)
    await turns()
    assert wire.sent.count(b"100 Continue") == wire.sent.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@run
async def test_a_head_is_sent_along_with_the_first_piece_of_its_body(method: bytes) -> None:
    listener, _ = buffering()
    listener.answer.set()
    listener.pieces = (b"HTTP/1.1 ", b"second")
    protocol, wire = listener.connect()
    for number in (1, 2):
        protocol.data_received(method + GET.removeprefix(b"GET"))
        await turns()
        assert wire.sent.count(b"HTTP/1.1 200 OK") == number
        expected = (b"", 1) if method == b"HEAD" else (b"HTTP/1.1 second", 3)  # the last is empty
        body = wire.sent.rpartition(b"\r\n\r\n")[2]
        assert (body, wire.writes) == (expected[0], number * expected[1])


@run
async def test_a_body_may_be_slow_behind_another_request() -> None:
    listener, opened = buffering()
    protocol, wire = listener.connect()
    protocol.data_received(GET + HEAD + b"x")
    await turns()
    assert wire.paused and len(listener.scopes) == 1
    listener.answer.set()
    await turns()
    assert not wire.paused and len(listener.scopes) == 1 and len(opened.arriving) == 1
    protocol.data_received(b"x" * SIZE)
    await turns()
    assert listener.bodies == [0, SIZE]


@run
async def test_a_sweep_refuses_a_few_at_a_time() -> None:
    """All of a flood are late at once; others have a turn between them."""
    listener, _ = buffering(body_timeout=10)
    number = 3 * connections.SWEEP_LOT
    clients = [listener.connect() for _ in range(number)]
    for protocol, _ in clients:
        protocol.data_received(HEAD)
    refused = 0
    for _ in listener.pool.sweep(asyncio.get_running_loop().time() + 60):
        await turns()
        before, refused = refused, sum(bool(wire.sent) for _, wire in clients)
        assert 0 < refused - before <= connections.SWEEP_LOT
    assert refused == number


def test_who_goes_away_is_counted() -> None:
    """As a request whose client closed, whether or not a task waited for its body."""
    code = 'rtp_llm_requests_total{code="499"'
    with listening(fake_engine()) as url:
        client = SlowClient(url, 700)
        assert code not in httpx.get(f"{url}/metrics").text
        client.leave()
        wait_for(lambda: code in httpx.get(f"{url}/metrics").text, 20)

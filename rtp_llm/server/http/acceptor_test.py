# SPDX-License-Identifier: Apache-2.0
"""Floods of connections: each is answered, or refused with 503, and none is reset."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvloop

from rtp_llm.server.http import connections
from rtp_llm.server.http.connections import GRACE_SECONDS
from rtp_llm.server.http.descriptors import Shares
from rtp_llm.testing.server.certificates import write_certificates
from rtp_llm.testing.server.connections import Listener
from rtp_llm.testing.server.serving import PROMPT, fake_engine, listening, run, wait_for
from rtp_llm.testing.server_processes import FAKE, TIMEOUT, Process, process

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n%s\r\n"
CLOSE = GET % b"Connection: close\r\n"
KEEP = GET % b""
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(name="loop", params=[asyncio.new_event_loop, uvloop.new_event_loop])
def _loop(request: pytest.FixtureRequest) -> NewLoop:
    made: NewLoop = request.param
    return made


def open_connections(url: str, number: int) -> list[socket.socket]:
    host, port = url.rpartition("//")[2].split(":")
    return [socket.create_connection((host, int(port)), 20) for _ in range(number)]


def answer_of(client: socket.socket) -> bytes:
    """One whole answer, whose length its head says; the client stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65536) or b"\r\n\r\nclosed"
    head, body = received.split(b"\r\n\r\n", 1)
    assert head, "closed without an answer"
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        part = client.recv(65536)
        assert part, "cut"
        body += part
    return received


def flood(clients: list[socket.socket], request: bytes) -> Counter[bytes]:
    """All send at once; returns the number of answers by status."""
    statuses: Counter[bytes] = Counter()
    for client in clients:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its answer came before
            client.sendall(request)
    for client in clients:
        answer = answer_of(client)
        assert answer[9:12] == b"200" or b"\r\nRetry-After: 1" in answer
        statuses[answer[9:12]] += 1
    return statuses


@contextlib.contextmanager
def closing(clients: list[socket.socket]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(client) for client in clients]


@pytest.fixture(name="limited", scope="module")
def _limited() -> Iterator[Process]:
    shell = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *FAKE]
    with process(command=shell) as server:
        yield server


@pytest.mark.parametrize("request_bytes", [CLOSE, KEEP])
def test_a_flood_is_answered(limited: Process, request_bytes: bytes) -> None:
    """With few descriptors, also where clients hold their connections open."""
    with closing(open_connections(limited.url, 200)) as clients:
        statuses = flood(clients, request_bytes)
        assert set(statuses) <= {b"200", b"503"} and statuses[b"200"] > 100
        assert httpx.get(f"{limited.url}/v1/models", timeout=TIMEOUT).status_code == 200


@pytest.fixture(name="few")
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "share_descriptors", lambda *_: Shares(4, 2, sys.maxsize))
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "REFUSE_SECONDS", 0.2)


@pytest.mark.usefixtures("few")
def test_connections_closed_for_others_were_answered(loop: NewLoop) -> None:
    """Also connections that have not sent anything: they may be about to."""
    with listening(fake_engine(), loop) as url, closing(open_connections(url, 10)) as clients:
        for client in clients[:6]:
            client.recv(1, socket.MSG_PEEK)
        assert flood(clients, CLOSE) == {b"200": 4, b"503": 6}


@pytest.mark.usefixtures("few")
def test_where_all_are_busy_others_wait_and_are_refused(loop: NewLoop) -> None:
    engine = fake_engine()
    engine.allowed_steps = lambda: 0
    body = json.dumps(PROMPT).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with listening(engine, loop) as url, closing(open_connections(url, 4)) as busy:
        for client in busy:
            client.sendall(request)
        wait_for(lambda: len(engine.streams) == 4, TIMEOUT)
        with closing(open_connections(url, 20)) as others:
            assert flood(others, KEEP) == {b"503": 20}
        engine.allowed_steps = lambda: math.inf
        assert all(answer_of(client)[9:12] == b"200" for client in busy)
        with closing(open_connections(url, 20)) as others:
            assert flood(others, KEEP) == {b"200": 20}, "what is idle gives way"


@pytest.mark.usefixtures("few")
def test_handshakes_that_stand_still_give_way(tmp_path: Path, loop: NewLoop) -> None:
    files = write_certificates(tmp_path)
    with (
        listening(fake_engine(), loop, **files) as url,
        closing(open_connections(url, 12)) as silent,
    ):
        answer = httpx.get(f"{url}/v1/models", verify=False, timeout=TIMEOUT)
        assert answer.status_code == 200 and silent[0].recv(1) == b""


@run
async def test_what_leaves_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "share_descriptors", lambda *_: Shares(1, 2, sys.maxsize))
    listener = Listener()
    listener.connect()[0].data_received(KEEP)
    leaving = [listener.connect()[1] for _ in range(2)]
    assert all(wire.ended for wire in leaving) and 0 < listener.pool.delay() <= GRACE_SECONDS
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0)
    assert listener.pool.delay() > 0 and [wire.aborted for wire in leaving] == [True, False]


@run
async def test_no_more_are_accepted_than_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lowest = 10
    monkeypatch.setattr(connections, "share_descriptors", lambda *_: Shares(100, 8, 12))
    monkeypatch.setattr(connections, "lowest_free", lambda: lowest)
    listener = Listener()
    first, second = listener.connect()[1], listener.connect()[1]
    assert listener.pool.delay() == 0
    listener.pool.scarce()
    assert listener.pool.delay() == 0, "two descriptors below the line are free"
    lowest = 12
    assert 0 < listener.pool.delay() <= GRACE_SECONDS
    third = listener.connect()[1]
    assert first.ended and b"HTTP/1.1 503" in first.sent and not (second.sent or third.sent)
    lowest = 11
    assert listener.pool.delay() == 0

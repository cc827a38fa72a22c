# SPDX-License-Identifier: Apache-2.0
"""Who asks reads an answer that came before its whole request, and is not heard for ever."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator

import pytest
import uvloop

from rtp_llm.server.http import lingering_close as lingering
from rtp_llm.testing.server.serving import PROMPT, fake_engine, listening, wait_for

LENGTH = 16 * 2**20  # more than sockets hold
JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(
    name="loop", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def _loop(request: pytest.FixtureRequest) -> NewLoop:
    """The router's loop and the server's."""
    made: NewLoop = request.param
    return made


@pytest.fixture(name="url")
def _url(loop: NewLoop) -> Iterator[str]:
    settings = {"api_key": "secret", "max_request_bytes": 1000}
    with listening(fake_engine(), loop, **settings) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(20)
    return connection


def head(path: str = "/v1/completions", key: str = "secret", length: str = "") -> bytes:
    length = length or f"Content-Length: {LENGTH}"
    lines = (f"POST {path} HTTP/1.1", "Host: x", "Connection: close", JSON, length)
    return "\r\n".join((*lines, f"Authorization: Bearer {key}", "", "")).encode()


def read_all(connection: socket.socket) -> bytes:
    heard = b""
    while part := connection.recv(65536):
        heard += part
    return heard


@pytest.mark.parametrize(
    ("begin", "status", "code"),
    [
        (head(), 413, "request_too_large"),
        (head(length=CHUNKED) + b"%x\r\n" % LENGTH + b"x" * 2000, 413, "request_too_large"),
        (head(key="wrong", length="Content-Length: 900"), 401, "invalid_api_key"),
        (head("/v1/nothing", length="Content-Length: 900"), 404, "unknown_endpoint"),
    ],
    ids=["too long", "too long in chunks", "key", "path"],
)
def test_who_sends_its_whole_body_first_reads_the_answer(
    url: str, begin: bytes, status: int, code: str
) -> None:
    with connect(url) as connection:
        connection.sendall(begin)
        wait_for(lambda: connection.recv(1, socket.MSG_PEEK), 20)  # the server is done with it
        connection.sendall(b"x" * (900 if b"900" in begin else LENGTH - 2000))
        shown, body = read_all(connection).split(b"\r\n\r\n")
    assert shown.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize(("name", "bound"), [("LINGER_BYTES", 2**20), ("LINGER_SECONDS", 0.2)])
def test_who_goes_on_is_cut_off(
    url: str, name: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many bytes however quick it is, after that time however slow."""
    monkeypatch.setattr(lingering, "LINGER_BYTES", 2**62)
    monkeypatch.setattr(lingering, "LINGER_SECONDS", 1e6)
    monkeypatch.setattr(lingering, name, bound)
    piece = b"x" * (2**16 if name == "LINGER_BYTES" else 1)
    with connect(url) as connection:
        connection.sendall(head(length=f"Content-Length: {2**40}"))
        assert read_all(connection)  # our half is open yet
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(piece)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_closes_its_half_gets_its_answer(
    loop: NewLoop, stream: bool, begun: bool
) -> None:
    """Before the answer begins and, if that comes in pieces, after."""
    engine = fake_engine()
    engine.allowed_steps = lambda: int(begun)
    body = json.dumps({**PROMPT, "stream": stream}).encode()
    with listening(engine, loop) as url, connect(url) as connection:
        connection.sendall(head(length=f"Content-Length: {len(body)}") + body)
        wait_for(lambda: engine.streams and engine.steps == begun, 20)
        heard = connection.recv(65536) if stream and begun else b""
        connection.shutdown(socket.SHUT_WR)
        engine.step_seconds, engine.allowed_steps = 0.01, lambda: 10**9
        heard += read_all(connection)
    answered = heard.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert (b"data: [DONE]" in heard) if stream else ('"finish_reason":"stop"' in heard.decode())
    assert not engine.aborted


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_found_out(loop: NewLoop, stream: bool) -> None:
    """Though nothing is there to be sent to it."""
    engine = fake_engine()
    engine.allowed_steps = lambda: int(stream)
    body = json.dumps({**PROMPT, "stream": stream, "ignore_eos": True}).encode()
    with listening(engine, loop) as url:
        with connect(url) as connection:
            connection.sendall(head(length=f"Content-Length: {len(body)}") + body)
            wait_for(lambda: engine.streams and engine.steps == stream, 20)
            if stream:
                wait_for(lambda: connection.recv(65536), 20)
        wait_for(lambda: not engine.streams, 20)
        assert engine.aborted == [(1, None)]


def test_a_client_that_leaves_within_its_request_is_gone(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(head(length="Content-Length: 900") + b"x" * 100)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


def test_who_asks_before_it_sends_a_long_body_sends_none(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(head(length=f"Expect: 100-continue\r\nContent-Length: {LENGTH}"))
        heard = read_all(connection)
    assert heard.startswith(b"HTTP/1.1 413 ") and b"100 Continue" not in heard


def test_sixty_megabytes_of_headers_are_answered(url: str) -> None:
    """By a client that reads only when all is sent; they are dropped as they come."""
    with connect(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        for _ in range(60 * 2**20 // 2**20):
            connection.sendall(b"X-Filler: %s\r\n" % (b"x" * 2**20))
        heard = read_all(connection)
    assert heard.startswith(b"HTTP/1.1 431 ") and b"headers_too_large" in heard

"""Who asks reads an answer that came before its whole request, and is not heard for ever."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
import uvloop

from rtp_llm.server import lingering
from rtp_llm.server.serving_for_tests import fake_engine, listening, wait_for

LENGTH = 16 * 2**20  # more than sockets hold
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(
    name="url", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def _url(request: pytest.FixtureRequest) -> Iterator[str]:
    """On the router's loop and on the server's."""
    settings = {"api_key": "secret", "max_request_bytes": 1000}
    with listening(fake_engine(), request.param, **settings) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(20)
    return connection


def head(path: str = "/v1/completions", key: str = "secret", length: str = "") -> bytes:
    length = length or f"Content-Length: {LENGTH}"
    lines = (f"POST {path} HTTP/1.1", "Host: x", "Connection: close", length)
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

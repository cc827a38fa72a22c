# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.0 knows no chunks: what has no length ends with the connection."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rtp_llm.testing.router.routing import routing
from rtp_llm.testing.server.connections import Listener
from rtp_llm.testing.server.serving import CHAT, PROMPT, TEXT, fake_engine, listening, run

STREAMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": PROMPT,
    "/v1/responses": {"model": "demo", "input": "Hello"},
    "/v1/messages": {**CHAT, "max_tokens": 99},
    "/api/chat": CHAT,
}


@pytest.fixture(name="url", scope="module", params=["server", "router"])
def _url(request: pytest.FixtureRequest) -> Iterator[str]:
    with listening(fake_engine()) as server:
        if request.param == "server":
            yield server
            return
        with routing(server) as router:
            yield router


def ask(url: str, method: str, path: str, body: object, version: str) -> tuple[bytes, bytes]:
    """Headers in lower case, and everything after them until the connection ends."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode() if body else b""
    head = [f"{method} {path} HTTP/{version}", "Host: x", "Content-Type: application/json"]
    head += [f"Content-Length: {len(data)}", "", ""]
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall("\r\n".join(head).encode() + data)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    headers, _, rest = received.partition(b"\r\n\r\n")
    return headers.lower(), rest


@pytest.mark.parametrize("path", STREAMED)
def test_a_stream_ends_with_its_connection(url: str, path: str) -> None:
    head, body = ask(url, "POST", path, {**STREAMED[path], "stream": True}, "1.0")
    assert head.startswith(b"http/1.1 200 ") and b"\r\nconnection: close" in head
    assert b"transfer-encoding" not in head and b"content-length" not in head
    words = [line.split(b":")[0] for line in body.splitlines() if line and line[:1] != b"{"]
    assert set(words) <= {b"event", b"data"}, "nothing but events, or lines of JSON"
    assert body.count(b"{") > 2


@pytest.mark.parametrize("path", STREAMED)
def test_a_whole_answer_has_its_length(url: str, path: str) -> None:
    head, body = ask(url, "POST", path, {**STREAMED[path], "stream": False}, "1.0")
    assert b"\r\ncontent-length: %d" % len(body) in head and b"\r\nconnection: close" in head
    assert TEXT in json.dumps(json.loads(body), ensure_ascii=False)


def test_an_error_has_its_length(url: str) -> None:
    head, body = ask(url, "POST", "/v1/completions", {"prompt": "x", "n": -1}, "1.0")
    assert head.startswith(b"http/1.1 400 ") and b"\r\ncontent-length: %d" % len(body) in head


@run
async def test_nobody_is_asked_to_go_on() -> None:
    """RFC 9110: an expectation is ignored in a request of HTTP/1.0."""
    listener = Listener()
    listener.answer.set()
    protocol, wire = listener.connect()
    protocol.data_received(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    for _ in range(5):
        await asyncio.sleep(0)
    protocol.data_received(b"{}")
    for _ in range(5):
        await asyncio.sleep(0)
    assert wire.sent.startswith(b"HTTP/1.1 200 ") and b"Continue" not in wire.sent

"""However many clients there are, and however slow: so many are served, the others hear 503."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from rtp_llm.server import open_requests
from rtp_llm.server.serving_for_tests import PROMPT, fake_engine, listening, wait_for

BODY = json.dumps(PROMPT).encode().ljust(800)
MOST, CLIENTS = 5, 40


class SlowClient:
    """Has said a part of its request and waits."""

    def __init__(self, url: str, part: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n"
        self._socket.sendall(head.encode() + b"Connection: close\r\n\r\n" + BODY[:part])
        self._rest = BODY[part:]

    def finish(self) -> None:
        self._socket.sendall(self._rest)

    def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        heard = b""
        while part := self._socket.recv(65536):
            heard += part
        head, body = heard.split(b"\r\n\r\n", 1)
        return int(head.split()[1]), head.lower(), body

    def leave(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def crowd(url: str, number: int, part: int) -> Iterator[list[SlowClient]]:
    clients = [SlowClient(url, part) for _ in range(number)]
    yield clients
    for client in clients:
        client.leave()


def is_taken(url: str, size: int = len(BODY)) -> bool:
    answer = httpx.post(f"{url}/v1/completions", content=BODY[:size].ljust(size))
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.headers["retry-after"] == "1"
    return answer.status_code == 200


@pytest.mark.parametrize(
    "bound",
    [
        {"max_open_requests": MOST},
        {"max_open_bytes": MOST * 700 + 500, "max_request_bytes": 1000},
    ],
    ids=["requests", "bytes"],
)
def test_so_many_are_open_at_once(bound: dict[str, int]) -> None:
    with listening(fake_engine(), **bound) as url, crowd(url, MOST, 700) as first:
        wait_for(lambda: not is_taken(url), 20)
        with crowd(url, CLIENTS, 700) as others:
            for client in others:
                status, head, body = client.answer()
                assert status == 503 and b"retry-after: 1" in head
                assert json.loads(body)["error"]["code"] == "overloaded"
        assert httpx.get(f"{url}/health").status_code == 200
        assert 'code="503"' in httpx.get(f"{url}/metrics").text
        first[0].leave()  # its place is another one's
        wait_for(lambda: is_taken(url), 20)
        for client in first[1:]:
            client.finish()
            assert client.answer()[0] == 200
        assert is_taken(url)


def test_one_body_may_be_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is said of all of them."""
    with listening(fake_engine(), max_open_bytes=1) as url:
        assert is_taken(url)


def test_who_says_nothing_of_its_body_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "BODY_SECONDS", 0.05)
    with listening(fake_engine(), max_open_requests=1) as url, crowd(url, 1, 700) as clients:
        status, head, body = clients[0].answer()
        assert status == 408 and b"connection: close" in head
        assert json.loads(body)["error"]["code"] == "request_timeout"
        wait_for(lambda: is_taken(url), 20)

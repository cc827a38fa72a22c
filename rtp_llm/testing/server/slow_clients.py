# SPDX-License-Identifier: Apache-2.0
"""Clients that send a part of their request and wait."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

from rtp_llm.testing.server.serving import PROMPT

BODY = json.dumps(PROMPT).encode().ljust(800)


class SlowClient:
    """Has said a part of its request and waits."""

    def __init__(self, url: str, part: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        self._socket.sendall(head.encode() + BODY[:part])
        self._rest = BODY[part:]

    def finish(self) -> None:
        self._socket.sendall(self._rest)

    def say(self, size: int) -> None:
        self._socket.sendall(self._rest[:size])
        self._rest = self._rest[size:]

    def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        heard = b""
        while part := self._socket.recv(65536):
            heard += part
        head, body = heard.split(b"\r\n\r\n", 1)
        return int(head.split()[1]), head.lower(), body

    def was_refused(self) -> bool:
        status, head, body = self.answer()
        assert b"retry-after: 1" in head
        return status == 503 and json.loads(body)["error"]["code"] == "overloaded"

    def leave(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def crowd(url: str, number: int, part: int) -> Iterator[list[SlowClient]]:
    clients = [SlowClient(url, part) for _ in range(number)]
    yield clients
    for client in clients:
        client.leave()

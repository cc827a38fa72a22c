# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers with the bytes that a test gives it, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """``connection``: which one it came on, from 0."""

    connection: int
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


# Gives the parts of an answer; after one without an end the connection is closed.
Behaviour = Callable[[Request], Iterable[bytes]]


@dataclass
class RawServer:
    url: str
    requests: list[Request] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """A client closed its connection in the middle of an answer."""


def with_length(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return head.encode() + _END + body


def answer_json(content: Any, status: str = "200 OK") -> bytes:
    return with_length(json.dumps(content).encode(), status)


def stream_head() -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked" + _END
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(content: Any) -> bytes:
    """As a chunk."""
    return chunk(b"data: " + json.dumps(content).encode() + b"\n\n")


DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def chat_events(*texts: str, reason: str = "stop", usage: Any = None) -> list[bytes]:
    """A streamed chat that says ``texts``."""
    deltas: list[Any] = [{"role": "assistant", "content": ""}, *({"content": t} for t in texts)]
    events = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    events.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
    if usage:
        events.append(event({"choices": [], "usage": usage}))
    return [stream_head(), *events, DONE]


@contextlib.contextmanager
def raw_server(behave: Behaviour) -> Iterator[RawServer]:
    """A server in threads of this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = RawServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=_accept, args=(listener, behave, served), daemon=True).start()
        yield served
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, behave: Behaviour, served: RawServer) -> None:
    number = 0
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            arguments = (client, number, behave, served)
            threading.Thread(target=_serve, args=arguments, daemon=True).start()
            number += 1


def _serve(client: socket.socket, number: int, behave: Behaviour, served: RawServer) -> None:
    with client, client.makefile("rb") as lines, contextlib.suppress(OSError):
        while line := lines.readline().decode().strip():
            headers = {}
            while text := lines.readline().decode().strip():
                name, _, value = text.partition(":")
                headers[name.lower()] = value.strip()
            body = lines.read(int(headers.get("content-length", 0)))
            request = Request(number, line, headers, body)
            served.requests.append(request)
            complete = False
            try:
                for part in behave(request):
                    client.sendall(part)
                    complete = b"Content-Length" in part or part.endswith(b"0\r\n\r\n")
            except OSError:
                served.left.set()
                return
            if not complete:
                return

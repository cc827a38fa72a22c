# SPDX-License-Identifier: Apache-2.0
"""One client that behaves badly, as a program: URL NAME SECONDS CONNECTIONS.

It says "built" when it is ready, begins when it reads a line, and finally reports the answers:
a JSON object of statuses and their counts, "cut" for connections that ended without one.
"""

from __future__ import annotations

import collections
import json
import resource
import selectors
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_MEBIBYTE = 2**20


def _user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


# Paths and bodies of requests that take long to parse or to render.
BODIES: dict[str, Callable[[], tuple[str, object]]] = {
    "a text of 7 MB to tokenise": lambda: ("/tokenize", {"prompt": "a house " * 900_000}),
    "a text of 30 MB to tokenise": lambda: ("/tokenize", {"prompt": "a house " * 3_800_000}),
    "a prompt of 3.6 MB": lambda: (TEXT, {"prompt": "a house " * 450_000}),
    "a message of 3.6 MB": lambda: (CHAT, {"messages": [_user("a house " * 450_000)]}),
    "200,000 messages": lambda: (CHAT, {"messages": [_user("")] * 200_000}),
    "200,000 text parts": lambda: (
        CHAT,
        {"messages": [_user([{"type": "text", "text": ""}] * 200_000)]},
    ),
    "1,200,000 text parts": lambda: (
        CHAT,
        {"messages": [_user([{"type": "text", "text": ""}] * 1_200_000)]},
    ),
    "300,000 logit_bias": lambda: (
        CHAT,
        {"messages": [_user("x")], "logit_bias": {str(i): 1 for i in range(300_000)}},
    ),
    "3,800,000 token ids": lambda: (TEXT, {"prompt": [1] * 3_800_000}),
    "10,000,000 token ids": lambda: (TEXT, {"prompt": [1] * 10_000_000}),
    "600,000 unknown fields": lambda: (TEXT, {f"f{i}": 1 for i in range(600_000)}),
    "1,000,000 unknown fields": lambda: (TEXT, {f"f{i}": 1 for i in range(1_000_000)}),
}
# What is sent on each of many connections at once, and again and again until the end.
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "silent connections": (b"", b""),
    "slow headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"x"),
    "slow bodies": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100000\r\n\r\n{",
        b" ",
    ),
}
# What one connection sends as fast as it can.
STREAMS: dict[str, tuple[bytes, bytes]] = {
    "60 MB of headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-Filler: %s\r\n" % (b"x" * 99)),
    "one header of 60 MB": (b"GET /health HTTP/1.1\r\nHost: x\r\nX: ", b"x" * 99),
    "pipelined requests": (b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
    "tiny chunks": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
}
UNREAD = "streams that nobody reads"
NAMES = (*BODIES, *STREAMS, *FLOODS, UNREAD)

Statuses = collections.Counter[str]


class Target:
    """The target server, and how long to abuse it."""

    def __init__(self, url: str, seconds: float, connections: int) -> None:
        parts = urllib.parse.urlsplit(url)
        self.place = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.seconds, self.connections = seconds, connections

    def connect(self, timeout: float = 60.0) -> socket.socket:
        """Open a connection to the server; raises OSError."""
        return socket.create_connection(self.place, timeout=timeout)

    def turns(self) -> Iterator[None]:
        """Iterate until the time is over, but at least once."""
        until = time.monotonic() + self.seconds
        yield
        while time.monotonic() < until:
            yield


def status_of(answer: bytes) -> str:
    """The status of an answer's head."""
    return answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else "cut"


def request(path: str, content: object) -> bytes:
    """A whole POST on a connection that ends with its answer."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def send_whole(target: Target, data: bytes, statuses: Statuses) -> None:
    """Repeat the same request, each time over a new connection."""
    for _ in target.turns():
        answer = b""
        try:
            with target.connect() as connection:
                connection.sendall(data)
                answer = connection.recv(65536)
        except OSError:
            pass
        statuses[status_of(answer)] += 1


def send_endlessly(target: Target, begin: bytes, more: bytes, statuses: Statuses) -> None:
    """Send 60 MB over one connection as fast as the server reads; then over the next one."""
    chunk = more * (_MEBIBYTE // len(more))
    for _ in target.turns():
        answer = b""
        try:
            with target.connect(timeout=target.seconds) as connection:
                try:
                    connection.sendall(begin)
                    for _ in range(60):
                        connection.sendall(chunk)
                except OSError:  # it takes no more
                    pass
                answer = connection.recv(65536)
        except OSError:
            pass
        statuses[status_of(answer)] += 1


def hold_many(target: Target, begin: bytes, more: bytes, statuses: Statuses) -> None:
    """Keep the requested number of connections open, replacing each one that ends."""
    with selectors.DefaultSelector() as selector:
        for _ in target.turns():
            for _ in range(target.connections - len(selector.get_map())):
                try:
                    connection = target.connect()
                    connection.sendall(begin)
                except OSError:
                    statuses["cut"] += 1
                    break
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            for key, _ in selector.select(0.1):
                ended: socket.socket = key.fileobj  # type: ignore[assignment]
                selector.unregister(ended)
                try:
                    statuses[status_of(ended.recv(65536))] += 1
                except OSError:
                    statuses["cut"] += 1
                ended.close()
            for key in list(selector.get_map().values()):
                try:
                    held: socket.socket = key.fileobj  # type: ignore[assignment]
                    held.send(more) if more else None
                except OSError:
                    pass
            time.sleep(0.2)


def read_nothing(target: Target, statuses: Statuses) -> None:
    """Request streams with every option from a few connections that read nothing."""
    content = {"prompt": ["a house", "a cat"], "n": 8, "max_tokens": 30_000, "stream": True}
    data = request(TEXT, content | {"ignore_eos": True})
    connections = []
    for _ in range(min(8, target.connections)):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(target.place)
        connection.sendall(data)
        connections.append(connection)
    time.sleep(target.seconds)
    for connection in connections:
        statuses[status_of(connection.recv(12))] += 1
        connection.close()


def main() -> None:
    url, name, seconds, connections = sys.argv[1:]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
    target, statuses = Target(url, float(seconds), int(connections)), Statuses()
    data = request(*BODIES[name]()) if name in BODIES else b""
    print("built", flush=True)
    sys.stdin.readline()
    if name in BODIES:
        send_whole(target, data, statuses)
    elif name in STREAMS:
        send_endlessly(target, *STREAMS[name], statuses)
    elif name in FLOODS:
        hold_many(target, *FLOODS[name], statuses)
    else:
        read_nothing(target, statuses)
    print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()

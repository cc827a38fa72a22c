# SPDX-License-Identifier: Apache-2.0
"""Cheap clients: many streams over raw sockets, from separate processes.

What a stream sends is not parsed but counted: events, and the usage at its end. As a program this
is one such process: a line of JSON requests on standard input, a line of answers on standard
output.
"""

from __future__ import annotations

import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]
_CHUNK = 2**18
_LAST = b"data: [DONE]\n\n"
_END = b"0\r\n\r\n"  # of a chunked body
_USAGE = b'"completion_tokens":'
_TAIL = 600  # bytes that surely hold the usage and the end


@dataclass
class Answer:
    """One stream: when its first and last bytes came (time.monotonic()), what it brought."""

    began: float
    first: float = 0.0
    last: float = 0.0
    events: int = 0
    tokens: int = 0
    end: str = ""

    @property
    def whole(self) -> bool:
        """Whether the stream ended normally."""
        return self.end.endswith(_LAST.decode())


class Clients:
    """`count` processes that share the streams of a server."""

    def __init__(self, url: str, count: int) -> None:
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmark.processes.stream_client", url],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]

    def ask(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """Send all requests at once and wait for every stream to end."""
        count = len(self._processes)
        lines = [json.dumps([path, bodies[number::count]]) + "\n" for number in range(count)]
        pipes = [(each.stdin, each.stdout) for each in self._processes]
        for (into, _), line in zip(pipes, lines, strict=True):
            if into is not None:
                into.write(line)
                into.flush()
        parts = [json.loads(out.readline()) for _, out in pipes if out is not None]
        return [Answer(**each) for part in parts for each in part]

    def close(self) -> None:
        """Terminate the client processes and wait for them."""
        for process in self._processes:
            process.communicate(timeout=30)


class _Stream:
    """One connection and what came over it."""

    def __init__(self, place: tuple[str, int], head: bytes, body: bytes) -> None:
        self.socket = socket.create_connection(place)
        self.tail = b""
        self.answer = Answer(began=time.monotonic())
        self.socket.sendall(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        self.socket.setblocking(False)

    def read(self) -> bool:
        """Take what is there; False at the end."""
        chunk = self.socket.recv(_CHUNK)
        answer = self.answer
        answer.last = time.monotonic()
        answer.first = answer.first or answer.last
        answer.events += chunk.count(b"data: {")
        self.tail = (self.tail + chunk)[-_TAIL:]
        return bool(chunk) and not self.tail.endswith(_END)

    def finish(self) -> Answer:
        """Return the answer, with the usage from its last event."""
        self.socket.close()
        _, found, rest = self.tail.rpartition(_USAGE)
        self.answer.tokens = int(rest.split(b",")[0]) if found else 0
        self.answer.end = self.tail.removesuffix(b"\r\n" + _END)[-200:].decode(errors="replace")
        return self.answer


def ask_all(url: str, path: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """All requests at once, over a connection each, in this process."""
    parts = urllib.parse.urlsplit(url)
    place = (parts.hostname or "127.0.0.1", parts.port or 80)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    encoded = [json.dumps(body).encode() for body in bodies]
    streams = [_Stream(place, head + b"Content-Length: ", body) for body in encoded]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fileobj)
    return [stream.finish() for stream in streams]


def main() -> None:
    for line in sys.stdin:
        path, bodies = json.loads(line)
        answers = ask_all(sys.argv[1], path, bodies)
        print(json.dumps([asdict(answer) for answer in answers]), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A cheap client: connections that are kept, over each of which one request follows another.

As a program: a line of JSON on standard input, [path, bodies, connections, seconds], makes it send
the bodies in turn for so long, and write a line of JSON, a Round, to standard output.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]
_CHUNK = 2**18
_LENGTH = b"content-length: "


@dataclass(frozen=True)
class Round:
    """What the connections did in ``seconds``: answers that came, and the client's processor time
    for them."""

    answers: int
    seconds: float
    processor_seconds: float


class RequestClient:
    """A process that sends requests to a server."""

    def __init__(self, url: str) -> None:
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.processes.request_client", url],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self, path: str, bodies: Sequence[dict[str, Any]], connections: int, seconds: float
    ) -> Round:
        """Send requests over all connections for so long; raises SystemExit if one fails."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps([path, bodies, connections, seconds]) + "\n")
        into.flush()
        line = out.readline()
        if not line:
            raise SystemExit("the client failed")
        return Round(**json.loads(line))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


class _Connection:
    """One connection, with a request that is on its way."""

    def __init__(self, place: tuple[str, int], requests: Iterator[bytes]) -> None:
        self.socket = socket.create_connection(place)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = requests
        self._received = b""
        self._whole = -1
        self.send()

    def send(self) -> None:
        """Send the next request."""
        self._received, self._whole = b"", -1
        self.socket.sendall(next(self._requests))

    def read(self) -> bool:
        """Take what is there; True when the answer is complete."""
        chunk = self.socket.recv(_CHUNK)
        self._received += chunk
        if self._whole < 0 and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            at = head.index(_LENGTH) + len(_LENGTH)
            self._whole = end + 4 + int(head[at:].partition(b"\r")[0])
            if not head.startswith(b"http/1.1 200"):
                raise SystemExit(f"the server answered {self._received!r}")
        if not chunk:
            raise SystemExit(f"the server closed a connection after {self._received!r}")
        return len(self._received) == self._whole


def ask_in_turn(
    url: str, path: str, bodies: Sequence[dict[str, Any]], connections: int, seconds: float
) -> Round:
    """Requests over all connections for so long; those on their way at the end do not count."""
    parts = urllib.parse.urlsplit(url)
    place = (parts.hostname or "127.0.0.1", parts.port or 80)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    encoded = [json.dumps(body).encode() for body in bodies]
    whole = [head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in encoded]
    requests = itertools.cycle(whole)
    began, used, answers = time.monotonic(), time.process_time(), 0
    with selectors.EpollSelector() as selector:
        opened = [_Connection(place, requests) for _ in range(connections)]
        for each in opened:
            selector.register(each.socket, selectors.EVENT_READ, each)
        while (now := time.monotonic()) < began + seconds:
            for key, _ in selector.select(timeout=began + seconds - now):
                if key.data.read():
                    answers += 1
                    key.data.send()
        for each in opened:
            each.socket.close()
    return Round(answers, now - began, time.process_time() - used)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asdict(ask_in_turn(sys.argv[1], *json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

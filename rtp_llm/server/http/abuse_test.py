# SPDX-License-Identifier: Apache-2.0
"""One client's huge or hostile bodies stop nobody else: asked of a server in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rtp_llm.testing.server.serving import wait_for
from rtp_llm.testing.server_processes import TIMEOUT, Process, children, process

MIB = 2**20
# Ten times the floors: /health within 250 ms, a stream that never stands still for a second.
HEALTH_SECONDS, STILL_SECONDS = 2.5, 10.0
GROWTH_BYTES = 256 * MIB
LEFT_BYTES = 64 * MIB
# Concurrent endless bodies, and the memory that may remain after the third and fourth round: after
# the first two, the allocators keep what they requested.
SLOW_BODIES, SLOW_LEFT_BYTES = 1500, 2 * MIB
SLOW_BODY = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100000\r\n\r\n{"
)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
CONTEXT = 4096
STREAM = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
TEXT = "Once upon a time there was a house in the woods.\n"


def _chat(content: Any, **fields: Any) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}], **fields})


def _text(size: int) -> str:
    return TEXT * (size // len(TEXT.encode()))


# path, body, status, what the message has to say (numbers; None: an answer comes)
ABUSES: dict[str, tuple[str, Callable[[], bytes], int, str | None]] = {
    "tokenize 0.9 MB": (
        "/tokenize",
        lambda: msgspec.json.encode({"prompt": _text(900_000)}),
        200,
        None,
    ),
    "tokenize 8 MB": (
        "/tokenize",
        lambda: msgspec.json.encode({"prompt": "x" * 8_000_000}),
        400,
        "8000000 characters; at most 1048576",
    ),
    "body over 8 MiB": (
        "/tokenize",
        lambda: msgspec.json.encode({"prompt": "x" * 9_000_000}),
        413,
        "8388608 bytes",
    ),
    "costly text": (
        "/tokenize",
        lambda: msgspec.json.encode({"prompt": "1\n" * (MIB // 2)}),
        400,
        "210 MiB",
    ),
    "chat 0.9 MB": (CHAT, lambda: _chat(_text(900_000)), 400, "context is 4096 tokens"),
    "chat 8 MB": (CHAT, lambda: _chat(_text(7_800_000)), 400, "context is 4096 tokens"),
    "completion 8 MB": (
        COMPLETIONS,
        lambda: msgspec.json.encode({"prompt": _text(7_800_000)}),
        400,
        "context is 4096 tokens",
    ),
    "messages": (
        CHAT,
        lambda: b'{"messages":[%b{}]}' % (b'{"role":"user","content":""},' * 200_000),
        400,
        "200001 messages are too many; at most 8192",
    ),
    "parts": (
        CHAT,
        lambda: (
            b'{"messages":[{"role":"user","content":[%b{}]}]}' % (b'{"type":"text"},' * 500_000)
        ),
        400,
        "500001 content parts are too many; at most 16384",
    ),
    "logit_bias": (
        CHAT,
        lambda: _chat("a", logit_bias={str(token): 1 for token in range(300_000)}),
        400,
        "300000 entries are too many; at most 4096",
    ),
    "token ids": (
        COMPLETIONS,
        lambda: b'{"prompt":[%b1]}' % (b"1," * 2_000_000),
        400,
        "2000001 in the prompt",
    ),
    "fields": (
        CHAT,
        lambda: b'{%b"messages":[]}' % b"".join(b'"f%d":0,' % n for n in range(300_000)),
        400,
        "300001 fields; at most 256",
    ),
    "empty lists": (
        COMPLETIONS,
        lambda: b'{"prompt":[%b[]]}' % (b"[]," * 1_000_000),
        400,
        None,
    ),
    "nesting": (CHAT, lambda: b'{"metadata":' + b"[" * 8_000_000, 400, "nested too deeply"),
}


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[Process]:
    with process(FAKE_TEXT="word " * CONTEXT, FAKE_CONTEXT=str(CONTEXT)) as server:
        wait_for(lambda: len(children(server.process.pid)) == 1, TIMEOUT)
        # Loaded, so that it is measured at rest.
        text = {"prompt": "Hello " * 2000}
        assert httpx.post(f"{server.url}/tokenize", json=text, timeout=TIMEOUT).status_code == 200
        yield server


def _resident(pid: int) -> int:
    """Bytes of a server and of its children."""
    pages = 0
    for each in (pid, *children(pid)):
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


class Neighbour:
    """Another client: asks for /health and reads streams while something goes on."""

    def __init__(self, server: Process) -> None:
        self.longest_health = self.longest_still = 0.0
        self.peak_bytes = self.requested = self.received = 0
        self._url, self._pid = server.url, server.process.pid
        self._done = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._ask, self._read)]

    def __enter__(self) -> Neighbour:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.received and self.requested, TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=TIMEOUT) as client:
            while not self._done.wait(0.01):
                began = time.monotonic()
                assert client.get(f"{self._url}/health").status_code == 200
                self.longest_health = max(self.longest_health, time.monotonic() - began)
                self.peak_bytes = max(self.peak_bytes, _resident(self._pid))
                self.requested += 1

    def _read(self) -> None:
        last = time.monotonic()
        body = {**STREAM, "max_tokens": CONTEXT - 100}
        while not self._done.is_set():
            with httpx.stream("POST", self._url + CHAT, json=body, timeout=TIMEOUT) as answer:
                for _ in answer.iter_bytes():
                    now = time.monotonic()
                    self.longest_still, last = max(self.longest_still, now - last), now
                    self.received += 1
                    if self._done.is_set():
                        return


@pytest.mark.parametrize("name", ABUSES)
def test_neighbours_go_on(name: str, server: Process) -> None:
    path, make, status, words = ABUSES[name]
    body, pid = make(), server.process.pid
    before = _resident(pid)
    with Neighbour(server) as neighbour:
        received, requested = neighbour.received, neighbour.requested
        answer = httpx.post(f"{server.url}{path}", content=body, headers=JSON, timeout=TIMEOUT)
        wait_for(
            lambda: neighbour.received > received and neighbour.requested > requested, STILL_SECONDS
        )
    assert answer.status_code == status, answer.text[:300]
    if words is not None:
        assert words in answer.json()["error"]["message"]
    assert neighbour.longest_health < HEALTH_SECONDS
    assert neighbour.longest_still < STILL_SECONDS
    assert neighbour.peak_bytes - before < GROWTH_BYTES
    wait_for(lambda: _resident(pid) - before < LEFT_BYTES, TIMEOUT)


# In a process of its own, so that it competes with no thread here: at each line that it is told, as
# many connections, a byte more on each, and how many of them were neither answered nor cut.
SLOW_CLIENT = f"""
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, {2 * SLOW_BODIES})), hard))
for line in sys.stdin:
    clients = []
    for _ in range({SLOW_BODIES}):
        clients.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
        clients[-1].sendall({SLOW_BODY!r})
    waiting = 0
    for client in clients:
        client.sendall(b" ")
    print("open", flush=True)
    sys.stdin.readline()
    for client in clients:
        try:
            client.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            waiting += 1
        client.close()
    print(waiting, flush=True)
"""


def _open_connections(server: Process) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=TIMEOUT).text
    (line,) = (each for each in text.splitlines() if each.startswith("rtp_llm_open_connections"))
    return float(line.split()[-1])


def test_slow_bodies_leave_nothing(server: Process) -> None:
    """Neighbours go on, and no more memory is held after each time than after the one before."""
    pid, left = server.process.pid, [_resident(server.process.pid)]
    command = [sys.executable, "-c", SLOW_CLIENT, server.url.rpartition(":")[2]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        for _ in range(4):
            with Neighbour(server) as neighbour:
                client.stdin.write("begin\n")
                assert client.stdout.readline() == "open\n"
                wait_for(lambda: _open_connections(server) >= SLOW_BODIES, TIMEOUT)
                client.stdin.write("end\n")
                assert int(client.stdout.readline()) == SLOW_BODIES
                wait_for(lambda: _open_connections(server) < SLOW_BODIES // 2, TIMEOUT)
            assert neighbour.longest_health < HEALTH_SECONDS
            assert neighbour.longest_still < STILL_SECONDS
            assert neighbour.peak_bytes - left[0] < GROWTH_BYTES
            left.append(_resident(pid))
        client.stdin.close()
    assert left[-1] - left[2] < SLOW_LEFT_BYTES, left

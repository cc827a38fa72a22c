# SPDX-License-Identifier: Apache-2.0
"""System limits: excess connections get an error, and limits that are too low are refused."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections import Counter

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import describe_memory_error
from rtp_llm.engine.process.main import _describe
from rtp_llm.server.http import connections
from rtp_llm.server.http.descriptors import BACKLOG, Shares, share_descriptors
from rtp_llm.testing.server.serving import demo_folder, fake_engine, listening
from rtp_llm.testing.server_processes import FAKE, environment

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("soft", "shares"),
    [
        (64, Shares(24, 8)),
        (1024, Shares(576, 192)),
        (8192 + 256 + BACKLOG, Shares(8192, BACKLOG)),
        (resource.RLIM_INFINITY, Shares(8192, BACKLOG)),
    ],
)
def test_open_and_waiting_connections_share(
    monkeypatch: pytest.MonkeyPatch, soft: int, shares: Shares
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert share_descriptors(Settings()) == shares


def test_what_was_closed_for_others_was_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also connections that have not sent anything: they may be about to."""
    monkeypatch.setattr(connections, "share_descriptors", lambda _: Shares(24, BACKLOG))
    with listening(fake_engine()) as url:
        host, port = url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port)), 20) for _ in range(30)]
        for client in clients[:6]:
            client.recv(1, socket.MSG_PEEK)
        heard: Counter[bytes] = Counter()
        for client in clients:
            with client:
                with contextlib.suppress(OSError):  # its answer came before
                    client.sendall(GET)
                answer = client.recv(65536)
                heard[answer[9:12]] += 1
                assert answer.startswith(b"HTTP/1.1 200 ") or b"\r\nRetry-After: 1" in answer
    assert heard == {b"200": 24, b"503": 6}


def limited(limit: str, *command: str) -> subprocess.CompletedProcess[str]:
    shell = ["bash", "-c", f'{limit}; exec "$@"', "bash", *command]
    return subprocess.run(shell, env=environment(), capture_output=True, text=True, timeout=240)


def test_too_few_files_are_refused_in_one_line() -> None:
    done = limited("ulimit -n 20", *FAKE, str(demo_folder()), "--port", "0")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "this process may open 20 files, a server needs at least 64: raise" in done.stderr


def test_no_more_memory_is_said_in_words() -> None:
    code = (
        "from rtp_llm.engine.messages import describe_memory_error as words; "
        "print(words('loading the model'))"
    )
    bounded = limited("ulimit -v 1500000", sys.executable, "-c", code).stdout
    assert bounded == (
        "out of memory while loading the model: this process may take 1464 MiB of address space "
        "(ulimit -v); raise that, or lift it: ulimit -v unlimited\n"
    )


def test_the_engine_says_what_it_was_doing() -> None:
    assert _describe(MemoryError()) == describe_memory_error("loading the model")
    assert _describe(MemoryError(), serving=True) == describe_memory_error("generating")

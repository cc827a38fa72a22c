# SPDX-License-Identifier: Apache-2.0
"""A replica behind a router is replaced, as in a rolling update: no answer is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import httpx

from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.server.serving import CHAT
from rtp_llm.testing.server_processes import TIMEOUT, environment, process


class Clients:
    """Threads that request one stream after another until they are stopped."""

    def __init__(self, url: str, count: int) -> None:
        self.answers: list[tuple[int, str]] = []
        self._url, self._stop = url, threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        body: dict[str, Any] = {**CHAT, "stream": True, "ignore_eos": True, "max_tokens": 20}
        with httpx.Client(base_url=self._url, timeout=TIMEOUT) as client:
            while not self._stop.is_set():
                answer = client.post("/v1/chat/completions", json=body)
                self.answers.append((answer.status_code, answer.text))

    def wait_for(self, more: int) -> None:
        """Until so many more answers have come."""
        requested, deadline = len(self.answers) + more, time.monotonic() + TIMEOUT
        while len(self.answers) < requested and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.answers) >= requested

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT)


def _wait_until_all_are_healthy(url: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not all(each["healthy"] for each in httpx.get(f"{url}/workers").json()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _route(stack: ExitStack, ports: list[int]) -> str:
    """The address of a router before servers on these ports."""
    workers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    command = [sys.executable, "-m", "rtp_llm.cli", "route", "--port", "0", "--workers", workers]
    router = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    stack.callback(router.wait)
    stack.callback(router.kill)
    assert router.stdout is not None
    return router.stdout.readline().split()[-1]


def test_a_replica_is_exchanged_and_every_answer_is_whole() -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(kept_port()) for _ in range(2)]
        old, _ = [stack.enter_context(process("--port", str(port))) for port in ports]
        url = _route(stack, ports)
        _wait_until_all_are_healthy(url)
        clients = Clients(url, 2)
        stack.callback(clients.stop)
        old.wait_for(" status=200", "stderr")
        old.process.send_signal(signal.SIGTERM)
        assert old.exit_code() == 0
        clients.wait_for(4)
        new = stack.enter_context(process("--port", str(ports[0])))
        new.wait_for(" status=200", "stderr")
        clients.stop()
        assert {status for status, _ in clients.answers} == {200}
        assert all(text.endswith("data: [DONE]\n\n") for _, text in clients.answers)

# SPDX-License-Identifier: Apache-2.0
"""A prefill server and a decode server as processes, over the demo model."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from rtp_llm.testing.server_processes import REAL, ROOT, Process, children, engines

DEMO = ROOT / "example" / "demo_model"
# Codes of refusals while an engine, or a server behind a router, has to wait for a core.
_FOR_A_MOMENT = ("engine_silent", "no_worker")
_SMALL = ("--num-threads", "1", "--kv-cache-mem-mb", "16", "--access-log", "off")


class Server:
    """A server whose engine process may be killed."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self.process: Process = self._start()

    def _start(self) -> Process:
        return Process(*_SMALL, *self._flags, command=REAL, model=DEMO)

    @property
    def url(self) -> str:
        return self.process.url

    def gauge(self, name: str) -> float:
        """A number of /metrics; 0 when it is not there."""
        try:
            return ask_gauge(self.url, name)
        except httpx.TransportError as error:
            said = self.process.stderr[-4000:]
            raise AssertionError(f"{self._flags} is gone: {error}; it said:\n{said}") from error

    def kill(self) -> None:
        """SIGKILL, the engine first: nobody closes anything in order."""
        for child in children(self.process.process.pid):
            os.kill(child, signal.SIGKILL)
        self.process.process.kill()
        self.process.process.wait()

    def kill_engine(self, seconds: float = 120) -> None:
        """SIGKILL to the engine process alone; returns when its successor serves."""
        before = self.gauge("rtp_llm_engine_restarts_total")
        for child in engines(self.process.process.pid):
            os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while self.gauge("rtp_llm_engine_restarts_total") == before or not self.gauge(
            "rtp_llm_ready"
        ):
            assert time.monotonic() < deadline, "its engine does not come back"
            time.sleep(0.05)

    def restart(self) -> None:
        """Start again what was killed, with the same flags."""
        self.process = self._start()

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Every block is back and nothing is held."""
        deadline = time.monotonic() + seconds
        while True:
            free = self.gauge("rtp_llm_kv_cache_free_blocks")
            total = self.gauge("rtp_llm_kv_cache_blocks")
            held = self.gauge("rtp_llm_held_sequences")
            if free == total > 0 and not held and not self.gauge("rtp_llm_running_sequences"):
                return
            assert time.monotonic() < deadline, (free, total, held)
            time.sleep(0.1)


def ask_gauge(url: str, name: str) -> float:
    """A number of a server's /metrics; 0 when it is not there."""
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith((f"{name} ", f'{name}{{model_name="')):
            return float(line.split()[-1])
    return 0.0


def complete(url: str, prompt: str, **body: Any) -> dict[str, Any]:
    """The first choice of a completion; the error object where there is one."""
    content = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **body}
    answer = answer_of(f"{url}/v1/completions", json=content)
    choice: dict[str, Any] = answer["choices"][0] if "choices" in answer else answer
    return choice


def answer_of(url: str, **asked: Any) -> dict[str, Any]:
    """What a POST is answered, which is asked again while it is refused for a moment only."""
    deadline = time.monotonic() + 60
    while True:
        answer: dict[str, Any] = httpx.post(url, timeout=120, **asked).json()
        refused = answer.get("error", {}).get("code") in _FOR_A_MOMENT
        if not refused or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)


@contextmanager
def servers(*decode_flags: str, port: int) -> Iterator[tuple[Server, Server]]:
    """(prefill, decode); ``port`` is where the one finds the other, also after a restart."""
    address = f"127.0.0.1:{port}"
    started: list[Server] = []
    try:
        started.append(Server("--role", "prefill", "--prefill-address", address))
        started.append(Server("--role", "decode", "--prefill-workers", address, *decode_flags))
        for server in started:
            server.process.wait_for("is ready: ")
        yield started[0], started[1]
    finally:
        for server in started:
            if server.process.process.poll() is None:
                server.kill()


def wait_for_peer(decode: Server, seconds: float = 60) -> None:
    """The decode worker has found its prefill worker: a prompt takes that way."""
    deadline = time.monotonic() + seconds
    while True:
        before = decode.gauge("rtp_llm_transfer_delivered_total")
        complete(decode.url, "Are you there?", max_tokens=2)
        time.sleep(0.3)  # metrics come with the heartbeat
        if decode.gauge("rtp_llm_transfer_delivered_total") > before:
            return
        assert time.monotonic() < deadline, "the prefill worker is not found again"

# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm route` stops as `rtp-llm serve` does: open answers end, or are cut with an error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rtp_llm.server.http.shutdown import SAME_SIGNAL_SECONDS
from rtp_llm.testing.server_processes import TIMEOUT, environment

EVENT = b"data: 1\n\n"
DONE = b"data: [DONE]\n\n"


class Worker(ThreadingHTTPServer):
    """Begins a stream for each POST and ends it when it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.may_end = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Worker

    def do_GET(self) -> None:
        body = b'{"data":[{"id":"m"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._say(EVENT)
        self.server.may_end.wait()
        self._say(DONE)
        self._say(b"")

    def _say(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def log_message(self, format: str, *args: object) -> None:
        pass


class Router:
    """The process, and a stream that is open in it."""

    def __init__(self, worker: Worker, timeout: str) -> None:
        command = [sys.executable, "-m", "rtp_llm.cli", "route", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--workers", worker.url, "--shutdown-timeout", timeout],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.received = b""
        self.streaming = threading.Thread(target=self._stream)

    def begin_stream(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while httpx.get(f"{self.url}/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.streaming.start()
        while self.received != EVENT:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _stream(self) -> None:
        with httpx.stream("POST", f"{self.url}/v1/x", json={}, timeout=TIMEOUT) as answer:
            for part in answer.iter_bytes():
                self.received += part

    def wait_until_draining(self) -> httpx.Response:
        deadline = time.monotonic() + TIMEOUT
        while (health := httpx.get(f"{self.url}/health")).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return health


@pytest.fixture(autouse=True)
def hang_ups_are_heard() -> Iterator[None]:
    """The test may run where they are ignored, which children inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def routing(timeout: str) -> Iterator[tuple[Worker, Router]]:
    worker = Worker()
    router = Router(worker, timeout)
    try:
        router.begin_stream()
        yield worker, router
    finally:
        worker.may_end.set()
        router.process.kill()
        router.process.wait()
        worker.shutdown()
        worker.server_close()


def test_open_answers_end_and_no_others_begin() -> None:
    with routing("600") as (worker, router):
        router.process.send_signal(signal.SIGTERM)
        assert router.wait_until_draining().json()["status"] == "draining"
        assert httpx.get(f"{router.url}/liveness").status_code == 200
        refused = httpx.post(f"{router.url}/v1/x", json={})
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "draining"
        worker.may_end.set()
        assert router.process.wait(TIMEOUT) == 0
        router.streaming.join(TIMEOUT)
        assert router.received == EVENT + DONE


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_is_open_after_the_timeout_is_cut(number: signal.Signals) -> None:
    with routing("0.2") as (_, router):
        router.process.send_signal(number)
        assert router.process.wait(TIMEOUT) == 0
        router.streaming.join(TIMEOUT)
        last = router.received.removeprefix(EVENT + b"data: ")
        assert json.loads(last)["error"]["code"] == "shutdown"


def test_a_background_job_of_a_script_hears_interrupts() -> None:
    """Shells start it with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with routing("0.2") as (_, router):
            router.process.send_signal(signal.SIGINT)
            assert router.process.wait(TIMEOUT) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_signal_cuts_at_once() -> None:
    with routing("600") as (_, router):
        router.process.send_signal(signal.SIGTERM)
        router.wait_until_draining()
        time.sleep(2 * SAME_SIGNAL_SECONDS)
        assert router.process.poll() is None
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(TIMEOUT) == 128 + signal.SIGTERM
        router.streaming.join(TIMEOUT)
        assert b'"shutdown"' in router.received

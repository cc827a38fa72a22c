# SPDX-License-Identifier: Apache-2.0
"""Routing: the core time that `rtp-llm route` spends per request, event and health check.

Its workers have no model and do nothing but answer (benchmark/processes/fake_workers.py). What is
measured is the processor time of the router's process alone, so clients and workers on the same
cores do not count. `./dev bench cluster_size` reckons with these figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.processes.fake_workers import EVENT
from benchmark.processes.stream_client import Clients
from benchmark.report import Report, parser
from benchmark.server_process import ROOT, processor_seconds
from rtp_llm.router.health import PROBE_SECONDS

COLUMNS = ("what", "us", "a second on one core")
STREAMS = 64  # open at a time
_PATH = "/v1/chat/completions"


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--workers", type=int, default=16)
    flags.add_argument("--events", type=int, default=256, help="of a long answer")
    flags.add_argument("--prompt-bytes", type=int, default=4096)
    flags.add_argument("--rounds", type=int, default=10, help=f"of {STREAMS} short answers")
    flags.add_argument("--seconds", type=float, default=10.0, help="of health checks alone")
    flags.add_argument("--steps-per-second", type=float, default=50.0, help="events of a stream")
    arguments = flags.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds, arguments.seconds = 16, 1, 1.0
    report = Report("A router before workers without a model", COLUMNS)
    with _router(arguments.workers, arguments.steps_per_second) as router:
        _add(report, "health check", router.probe(arguments.seconds))
        short = router.request(arguments.rounds, 1, arguments.prompt_bytes)
        _add(report, "request", short)
        whole = router.request(1, arguments.events, arguments.prompt_bytes)
        _add(report, "event", (whole - short) / (arguments.events - 1))
    report.notes.append(
        f"{arguments.workers} workers, {STREAMS} streams at a time, prompts of "
        f"{arguments.prompt_bytes} bytes. A request: its answer is one event of {len(EVENT)} "
        f"bytes. An event: one of {arguments.events} of an answer, {arguments.steps_per_second:g} "
        "a second of each stream"
    )
    report.print()
    report.write(arguments.json)


def _add(report: Report, what: str, seconds: float) -> None:
    rate = 1 / seconds if seconds > 0 else None  # less than the kernel's clock shows
    report.add(**{"what": what, "us": 1e6 * seconds, "a second on one core": rate})


class _Router:
    """The router process, its clients, and its processor time."""

    def __init__(self, process: int, url: str, workers: int) -> None:
        self._process, self._url, self._workers = process, url, workers
        self._clients = Clients(url, 1)
        self._check_seconds = 0.0

    def close(self) -> None:
        self._clients.close()

    def wait_until_ready(self) -> None:
        """Until it knows the models of all workers: it asks for them once each."""
        while True:
            with urllib.request.urlopen(f"{self._url}/workers") as answer:
                if all(each["healthy"] and each["models"] for each in json.load(answer)):
                    return
            time.sleep(0.1)

    def probe(self, seconds: float) -> float:
        """Processor seconds of one worker's health check."""
        before = processor_seconds(self._process)
        time.sleep(seconds)
        used = (processor_seconds(self._process) - before) / seconds
        self._check_seconds = used * PROBE_SECONDS / self._workers
        return self._check_seconds

    def request(self, rounds: int, events: int, prompt_bytes: int) -> float:
        """Processor seconds of a request and its answer, without the checks meanwhile."""
        bodies = [_body(number, events, prompt_bytes) for number in range(STREAMS)]
        self._clients.ask(_PATH, bodies[:8])
        before, began = processor_seconds(self._process), time.monotonic()
        for _ in range(rounds):
            answers = self._clients.ask(_PATH, bodies)
            if not all(each.whole and each.tokens == events for each in answers):
                raise SystemExit(f"an answer was not whole: {answers[0]}")
        checks = (time.monotonic() - began) / PROBE_SECONDS * self._workers
        used = processor_seconds(self._process) - before - checks * self._check_seconds
        return used / (rounds * STREAMS)


def _body(number: int, events: int, prompt_bytes: int) -> dict[str, Any]:
    text = f"{number:08} " * (prompt_bytes // 9)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": events,
        "stream": True,
    }


@contextmanager
def _router(count: int, steps_per_second: float) -> Iterator[_Router]:
    """Start a router with this many workers."""
    program = "benchmark.processes.fake_workers"
    with _program(program, str(count), str(steps_per_second)) as workers:
        ports = json.loads(_line(workers))
        addresses = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        command = ["rtp_llm.cli", "route", "--port", "0", "--workers", addresses]
        with _program(*command, "--log-level", "warning") as process:
            router = _Router(process.pid, _line(process).split()[-1], count)
            try:
                router.wait_until_ready()
                yield router
            finally:
                router.close()


@contextmanager
def _program(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit(f"{process.args!r} did not start")
    return line


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Serving: what one client that behaves badly does to the others.

For each abuse, from a process of its own: how long another client waits for /health, for how long
its stream stands still, and by how much the server's memory grows, and is larger afterwards. The
server's engine has no model and emits a token for each sequence at a steady pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmark.processes.abuser import NAMES
from benchmark.processes.emitting_engine import RATE_VARIABLE
from benchmark.random_model import config_folder
from benchmark.report import Report, parser
from benchmark.server_process import ROOT, ServerProcess, write_tokenizer

SHAPE = "qwen3-0.6b"
STEPS_PER_SECOND = 100.0
HEALTH_GOAL, GAP_GOAL, MEMORY_GOAL = 0.25, 1.0, 256
_FLAGS = ("--load-format", "dummy", "--log-level", "error")
_PROBE_SECONDS = 0.02
_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20
COLUMNS = (
    "abuse",
    "answers",
    "/health p99 ms",
    "worst ms",
    "longest gap ms",
    "memory MiB",
    "after MiB",
    "within the goals",
)


@dataclass
class Seen:
    """What another client measured during the abuse; seconds and MiB."""

    waits: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--abuse", choices=NAMES, action="append")
    flags.add_argument("--seconds", type=float, default=8.0, help="of each abuse")
    flags.add_argument("--connections", type=int, default=4096)
    arguments = flags.parse_args()
    os.environ[RATE_VARIABLE] = str(STEPS_PER_SECOND)
    folder = config_folder(SHAPE)
    write_tokenizer(folder, SHAPE)
    report = Report("A well-behaved client while another misbehaves", COLUMNS)
    command = [sys.executable, "-m", "benchmark.processes.emitting_server"]
    for name in arguments.abuse or NAMES:
        with ServerProcess(folder, *_FLAGS, command=command) as server:
            measure(report, server, name, arguments.seconds, arguments.connections)
    report.notes.append(
        f"Goals: /health p99 under {1e3 * HEALTH_GOAL:g} ms, no gap over {1e3 * GAP_GOAL:g} ms, at "
        f"most {MEMORY_GOAL} MiB more memory. The stream has {STEPS_PER_SECOND:g} tokens/s."
    )
    report.print()
    report.write(arguments.json)


def measure(
    report: Report, server: ServerProcess, name: str, seconds: float, connections: int
) -> None:
    """Run one kind of abuse and add a row to the report."""
    command = [sys.executable, "-m", "benchmark.processes.abuser", server.url, name]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [*command, str(seconds), str(connections)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as abuser:
        if abuser.stdout is None or abuser.stdin is None:
            raise SystemExit("the abuser has no pipes")
        abuser.stdout.readline()
        seen, answers, before, after = asyncio.run(watch(server, abuser))
    ordered = sorted(seen.waits)
    p99, gap = ordered[int(0.99 * len(ordered))], max(seen.gaps)
    grown = max(seen.sizes) - before
    report.add(
        **{
            "abuse": name,
            "answers": " ".join(f"{status}: {count}" for status, count in answers.items()),
            "/health p99 ms": 1e3 * p99,
            "worst ms": 1e3 * ordered[-1],
            "longest gap ms": 1e3 * gap,
            "memory MiB": grown,
            "after MiB": after - before,
            "within the goals": "yes"
            if p99 < HEALTH_GOAL and gap < GAP_GOAL and grown <= MEMORY_GOAL
            else "NO",
        }
    )


async def watch(
    server: ServerProcess, abuser: subprocess.Popen[str]
) -> tuple[Seen, dict[str, int], float, float]:
    """Return the measurements, the abuser's responses, and memory before and after the abuse."""
    seen = Seen()
    place = urllib.parse.urlsplit(server.url)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_running(_stream(host, port, seen)))
        await stack.enter_async_context(_running(_probe(host, port, seen)))
        while not seen.gaps:
            await asyncio.sleep(0.5)
        before = memory(server.processes)
        await stack.enter_async_context(_running(_weigh(server.processes, seen)))
        seen.waits.clear(), seen.gaps.clear()
        answers = json.loads(await asyncio.to_thread(_abuse, abuser))
        await asyncio.sleep(2.0)
        after = memory(server.processes)
    return seen, answers, before, after


def _abuse(abuser: subprocess.Popen[str]) -> str:
    out, _ = abuser.communicate("begin\n", timeout=300)
    return out


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> Any:
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()
            raise SystemExit("the other client was cut off")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _probe(host: str, port: int, seen: Seen) -> None:
    """Probe /health, each time over a new connection, as a load balancer does."""
    while True:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(_HEALTH)
        answer = await reader.read()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"/health: {answer[:100]!r}")
        seen.waits.append(time.perf_counter() - began)
        writer.close()
        await asyncio.sleep(_PROBE_SECONDS)


async def _stream(host: str, port: int, seen: Seen) -> None:
    """Keep one stream running and record the gaps between its chunks."""
    content = {"prompt": "a house", "max_tokens": 60_000, "stream": True, "ignore_eos": True}
    body = json.dumps(content).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    last = time.perf_counter()
    while await reader.read(65536):
        now = time.perf_counter()
        seen.gaps.append(now - last)
        last = now


async def _weigh(processes: list[int], seen: Seen) -> None:
    while True:
        seen.sizes.append(memory(processes))
        await asyncio.sleep(0.05)


def memory(processes: list[int]) -> float:
    """Return the resident memory of all processes, in MiB."""
    files = (pathlib.Path(f"/proc/{process}/statm") for process in processes)
    return sum(int(file.read_text().split()[1]) for file in files) * _PAGE


if __name__ == "__main__":
    main()

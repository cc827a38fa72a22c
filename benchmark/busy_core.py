# SPDX-License-Identifier: Apache-2.0
"""Decoding on the CPU while another process keeps one core busy: default threads against 1 and 2.

The demo model, 16 requests of 100 tokens, on an idle machine and with a busy loop pinned to
the last core of this process. Engines take turns. Run it at a priority that other work of the
machine does not share: nice -n -20 python3 -m benchmark.busy_core

--tree compares another checkout, in which `bazel build //rtp_llm:native_files` was run. On a shared
machine, chrt -f 10 with --idle and a --pause as long as a run keeps the cores for the run: 5% of
each second are not for real-time threads that never pause.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ROOT

DEMO = ROOT / "example" / "demo_model"
REQUESTS, TOKENS = 16, 100
GOAL = 1.3  # of the better of one and two threads, with the busy loop running
DEFAULT = "default"
COLUMNS = ("machine", "engine", "threads", "seconds", "spread", "x best of 1 and 2", "goal")
_SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def main() -> None:
    arguments = read_flags()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    tokens = 10 if arguments.quick else TOKENS
    report = Report(f"{REQUESTS} requests of {tokens} tokens", COLUMNS)
    with contextlib.ExitStack() as stack:
        engines = {
            name: stack.enter_context(DecodingEngine(threads, tokens, pause=arguments.pause))
            for name, threads in ((DEFAULT, 0), ("1 thread", 1), ("2 threads", 2))
        }
        others = [
            *(
                _named(text, lambda file: {"RTP_LLM_OPS_LIBRARY": file})
                for text in arguments.library
            ),
            *(_named(text, built_in) for text in arguments.tree),
        ]
        for name, environment in others:
            engine = DecodingEngine(0, tokens, environment, arguments.pause)
            engines[name] = stack.enter_context(engine)
        measure(report, "idle", engines, rounds)
        if not arguments.idle:
            core = max(os.sched_getaffinity(0))
            with _spinning(core):
                measure(report, f"core {core} busy", engines, rounds)
    report.notes.append(f"Medians of {rounds} interleaved rounds.")
    report.print()
    report.write(arguments.json)


def read_flags() -> argparse.Namespace:
    """Parse this benchmark's own flags and the flags that all benchmarks share."""
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    flags.add_argument(
        "--library",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="another operator library to compare, with the default threads",
    )
    flags.add_argument(
        "--tree",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="another checkout to compare, with the default threads and what Bazel built there",
    )
    flags.add_argument("--pause", type=float, default=0.0, help="seconds before each run")
    flags.add_argument("--idle", action="store_true", help="skip the runs with a busy loop")
    return flags.parse_args()


class DecodingEngine:
    """A process that holds an engine, so that several take turns."""

    def __init__(
        self,
        threads: int,
        tokens: int,
        environment: Mapping[str, str] | None = None,
        pause: float = 0.0,
    ) -> None:
        """``environment``: what differs from ours; ``pause``: seconds before each run."""
        program = ROOT / "benchmark" / "processes" / "decoding_engine.py"
        self._child = subprocess.Popen(
            [sys.executable, program, DEMO, str(threads), str(REQUESTS), str(tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), **os.environ, **(environment or {})},
        )
        self._pause = pause
        self.threads = int(self._answer())

    def __enter__(self) -> DecodingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stdin.close()
        self._child.wait()

    def decode(self) -> float:
        """Return the seconds for all requests."""
        assert self._child.stdin is not None
        time.sleep(self._pause)
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._child.stdout is not None
        if not (line := self._child.stdout.readline()):
            raise SystemExit("an engine ended; what it said is above")
        return float(line)


def built_in(tree: str) -> dict[str, str]:
    """The environment that an engine of another checkout needs."""
    built = Path(tree).resolve() / "bazel-bin" / "rtp_llm"
    try:
        runtime, library = next(built.glob("_runtime*.so")), built / "lib" / "librtp_llm_cpu.so"
    except StopIteration:
        raise SystemExit(f"{tree} has no bazel-bin/rtp_llm/_runtime*.so; build it first") from None
    return {
        "PYTHONPATH": os.pathsep.join([tree, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "RTP_LLM_RUNTIME": str(runtime),
        "RTP_LLM_OPS_LIBRARY": str(library),
    }


def _named(text: str, read: Callable[[str], dict[str, str]]) -> tuple[str, dict[str, str]]:
    name, _, value = text.partition("=")
    return name, read(value)


def measure(report: Report, machine: str, engines: dict[str, DecodingEngine], rounds: int) -> None:
    """A row for each engine."""
    figures = interleave({name: engine.decode for name, engine in engines.items()}, rounds)
    best = min(figures["1 thread"].median, figures["2 threads"].median)
    for name, figure in figures.items():
        report.add(
            **{
                "machine": machine,
                "engine": name,
                "threads": engines[name].threads,
                "seconds": figure.median,
                "spread": figure.spread,
                "x best of 1 and 2": figure.median / best,
                "goal": GOAL if name == DEFAULT and machine != "idle" else None,
            }
        )


@contextlib.contextmanager
def _spinning(core: int) -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", _SPIN, str(core)])
    try:
        yield
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()

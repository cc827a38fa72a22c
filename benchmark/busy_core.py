"""Decoding on the CPU while something else keeps one core busy: the default threads beside 1 and 2.

The demo model, 16 requests of 100 tokens, on an idle machine and beside a loop that is pinned to
the last core of this process. Engines take turns. Run it at a priority that other work of the
machine does not share: nice -n -20 python3 -m benchmark.busy_core
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ROOT

DEMO = ROOT / "example" / "demo_model"
REQUESTS, TOKENS = 16, 100
GOAL = 1.3  # of the better of one and two threads, beside the loop
DEFAULT = "default"
COLUMNS = ("machine", "engine", "threads", "seconds", "spread", "x best of 1 and 2", "goal")
_SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    flags.add_argument(
        "--library",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="another operator library to compare, with the default threads",
    )
    arguments = flags.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    tokens = 10 if arguments.quick else TOKENS
    report = Report(f"{REQUESTS} requests of {tokens} tokens", COLUMNS)
    with contextlib.ExitStack() as stack:
        engines = {
            name: stack.enter_context(DecodingEngine(threads, tokens))
            for name, threads in ((DEFAULT, 0), ("1 thread", 1), ("2 threads", 2))
        }
        for name, _, file in (text.partition("=") for text in arguments.library):
            engines[name] = stack.enter_context(DecodingEngine(0, tokens, library=file))
        measure(report, "idle", engines, rounds)
        core = max(os.sched_getaffinity(0))
        with _spinning(core):
            measure(report, f"core {core} busy", engines, rounds)
    report.notes.append(f"Medians of {rounds} interleaved rounds.")
    report.print()
    report.write(arguments.json)


class DecodingEngine:
    """A process that holds an engine, so that several take turns."""

    def __init__(self, threads: int, tokens: int, library: str | None = None) -> None:
        program = [sys.executable, "-m", "benchmark.processes.decoding_engine"]
        environment = {**os.environ, **({"RTP_LLM_OPS_LIBRARY": library} if library else {})}
        self._child = subprocess.Popen(
            [*program, str(DEMO), str(threads), str(REQUESTS), str(tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.threads = int(self._answer())

    def __enter__(self) -> DecodingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stdin.close()
        self._child.wait()

    def decode(self) -> float:
        """Seconds for all requests."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._child.stdout is not None
        if not (line := self._child.stdout.readline()):
            raise SystemExit("an engine ended; what it said is above")
        return float(line)


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

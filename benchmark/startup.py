"""Start-up: seconds from the command to a server that is ready, and to its first answer.

Beside it the floor: how long Python takes to import torch, which the engine process cannot avoid.
"""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import time

from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ROOT, ServerProcess, stream

GOAL_SECONDS = 6.0
DEMO = ROOT / "example" / "demo_model"
COLUMNS = ("what", "seconds", "spread", "goal")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", type=pathlib.Path, default=DEMO)
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    answers: list[float] = []

    def start() -> float:
        with ServerProcess(arguments.model, "--num-threads", str(arguments.threads)) as server:
            asyncio.run(stream(server.url, "What is 12 + 30?", 1))
            answers.append(time.perf_counter() - server.began)
            return server.ready_seconds

    rounds = arguments.rounds or (3 if arguments.quick else 5)
    figures = interleave({"ready": start, "torch": _import_torch}, rounds)
    answers = sorted(answers[1:])
    report = Report(f"Start-up of {arguments.model.name}", COLUMNS)
    ready, torch_import = figures["ready"], figures["torch"]
    report.add(what="ready", seconds=ready.median, spread=ready.spread, goal=GOAL_SECONDS)
    report.add(
        what="first answer",
        seconds=answers[len(answers) // 2],
        spread=(answers[0], answers[-1]),
    )
    report.add(
        what="limit: python -c 'import torch'",
        seconds=torch_import.median,
        spread=torch_import.spread,
    )
    report.notes.append(f"{rounds} rounds, files in the page cache.")
    report.print()
    report.write(arguments.json)


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

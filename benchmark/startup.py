# SPDX-License-Identifier: Apache-2.0
"""Start-up: seconds from the command to a server that is ready, and to its first answer.

Next to it the floor: how long Python takes to import torch, which the engine process cannot avoid;
and what the engine process spends its time on. Earlier runs have cached the files and compiled the
kernels.
"""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import time

from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave
from benchmark.server_process import ROOT, ServerProcess, speaking_folder, stream

GOAL_SECONDS = {"ready": 6.0, "first answer": 12.0}
DEMO = ROOT / "example" / "demo_model"
COLUMNS = ("what", "seconds", "spread", "goal")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", type=pathlib.Path, help="a folder; the demo model's without it")
    flags.add_argument("--shape", help="random weights of benchmark/random_model.py instead")
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    model = speaking_folder(arguments.shape) if arguments.shape else arguments.model or DEMO
    answers: list[float] = []
    phases: list[dict[str, float]] = []

    def start() -> float:
        with ServerProcess(model, "--num-threads", str(arguments.threads)) as server:
            asyncio.run(stream(server.url, "What is 12 + 30?", 1))
            answers.append(time.perf_counter() - server.began)
        phases.append(server.phases)
        return server.ready_seconds

    rounds = arguments.rounds or (3 if arguments.quick else 5)
    figures = interleave({"ready": start, "torch": _import_torch}, rounds)
    report = Report(f"Start-up of {model.name}", COLUMNS)
    for name, figure in (
        ("ready", figures["ready"]),
        ("first answer", Figure(tuple(answers[1:]))),
        ("limit: python -c 'import torch'", figures["torch"]),
        *(
            (f"of the engine's start: {phase}", Figure(tuple(each[phase] for each in phases[1:])))
            for phase in phases[0]
        ),
    ):
        goal = GOAL_SECONDS.get(name)
        report.add(what=name, seconds=figure.median, spread=figure.spread, goal=goal)
    report.notes.append(f"{rounds} rounds, files in the page cache.")
    report.print()
    report.write(arguments.json)


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

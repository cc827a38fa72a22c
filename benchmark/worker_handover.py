# SPDX-License-Identifier: Apache-2.0
"""Handing a step over to ranks that do nothing: from rank 0 to all of them.

The limit is one cache line that travels to every core and one that comes back from each, about a
microsecond; the goal is 20 us p99 for 8 ranks on 16 or more cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from benchmark.report import Report, parser
from rtp_llm.native import load_runtime
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.ranks_worker import RanksWorker
from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtp_llm.worker.plan.step_plan import StepPlan

COLUMNS = ("ranks", "between steps", "spin us", "p50 us", "p99 us", "p99.9 us", "worst us")
_WARM_UP = 200


class NothingWorker(Worker):
    """Computes nothing, and is its own handle."""

    overlaps = False

    def add(self, sequences: NewSequences) -> None: ...
    def fork(self, forked: ForkedSequences) -> None: ...
    def end(self, ids: Iterable[int], *, aborted: bool) -> None: ...
    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        return self

    def sample(self, previous: NDArray[np.int32] | None) -> None: ...
    def read(self) -> StepOutputs:
        return StepOutputs(0, 0)


def make_nothing() -> Worker:
    """Make the worker of each process."""
    return NothingWorker()


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    flags.add_argument("--steps", type=int, default=20000)
    arguments = flags.parse_args()
    steps = 500 if arguments.quick else arguments.steps
    report = Report("Handing a step over to ranks", COLUMNS)
    for ranks in arguments.ranks:
        spin = 1000 if len(os.sched_getaffinity(0)) >= ranks else 0
        measure(report, ranks, "nothing", 0.0, spin, steps)
        measure(report, ranks, "2 ms (they sleep)", 0.002, 0, min(steps, 1000))
    report.notes.append("Goal: 20 us p99 with 8 ranks on 16 or more cores.")
    report.print()
    report.write(arguments.json)


def measure(report: Report, ranks: int, name: str, pause: float, spin: int, steps: int) -> None:
    """One row: seconds from publishing a step until every rank has copied it."""
    runtime = load_runtime()
    group = runtime.CacheGroup(kind="full", num_blocks=64, block_size=16)
    config = runtime.SchedulerConfig([group], max_model_len=512, shared_batch=True)
    scheduler = runtime.Scheduler(config)
    others = ranks - 1
    names = [f"rank {rank}" for rank in range(1, ranks)]
    factory = f"{__spec__.name}:make_nothing"
    processes = RankProcesses(factory, [()] * others, [{}] * others, names)
    worker = RanksWorker(
        make_nothing(), processes, scheduler, timeout=60.0, in_place=False, spin=spin
    )
    waits = np.empty(steps + _WARM_UP)
    try:
        for step in range(len(waits)):
            if pause:
                time.sleep(pause)
            began = time.perf_counter()
            handle = worker.execute(scheduler.batch)
            waits[step] = time.perf_counter() - began
            assert handle is not None
            handle.read()
    finally:
        processes.close()
    p50, p99, p999, worst = 1e6 * np.percentile(waits[_WARM_UP:], [50, 99, 99.9, 100])
    report.add(
        **dict(zip(COLUMNS, (ranks, name, spin, p50, p99, p999, worst), strict=True)),
    )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Step cost: what the C++ runtime adds to a step of 256 decodes at 2k context, without a model.

A step here is schedule() with all batch arrays filled, a view of each array, and commit() of one
token per row. In the last case each sequence that ends is replaced by a new prompt, so that
admission, chunked prompts, prefix-cache look-ups and eviction are part of the step.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from rtp_llm.native import load_runtime

GOAL_US = 150.0
SEQUENCES = 256
CONTEXT = 2048
BLOCK_SIZE = 16
BLOCKS_PER_SEQUENCE = CONTEXT // BLOCK_SIZE + 40
ARRAYS = [
    "token_ids",
    "positions",
    "cu_seqlens_q",
    "seq_lens",
    "slot_mapping",
    "block_table",
    "copy_pairs",
    "logit_rows",
    "row_ids",
    "row_slots",
    "row_steps",
]


def make_scheduler(prefix_cache: bool, overlap: bool = False) -> Any:
    """A scheduler with room for all sequences."""
    runtime = load_runtime()
    group = runtime.CacheGroup("full", SEQUENCES * BLOCKS_PER_SEQUENCE, BLOCK_SIZE)
    config = runtime.SchedulerConfig(
        [group],
        max_running=SEQUENCES,
        max_batch_tokens=8192,
        max_model_len=2 * CONTEXT,
        prefix_cache=prefix_cache,
        overlap=overlap,
    )
    return runtime.Scheduler(config)


def arrays_of(batch: Any) -> list[Any]:
    """A view of every array of the batch."""
    return [getattr(batch, name) for name in ARRAYS]


def flat(arrays: list[Any]) -> list[Any]:
    """Flatten the list: the arrays of several groups come as tuples."""
    return [
        array for value in arrays for array in (value if isinstance(value, tuple) else (value,))
    ]


class Load:
    """Keeps the scheduler full of sequences with random prompts."""

    def __init__(self, scheduler: Any, max_tokens: int, overlap: bool = False) -> None:
        self.scheduler = scheduler
        self._overlap = overlap
        self._max_tokens = max_tokens
        self._random = np.random.default_rng(0)
        self._next_id = 0

    def add(self, count: int) -> None:
        """Queue requests; their lengths are spread so that they do not all end together."""
        for _ in range(count):
            prompt = self._random.integers(0, 1 << 15, CONTEXT, dtype=np.int32)
            tokens = int(self._random.integers(self._max_tokens // 2, self._max_tokens + 1))
            self.scheduler.add([self._next_id], prompt, max_tokens=tokens)
            self._next_id += 1

    def fill(self) -> None:
        """Run steps until every sequence decodes."""
        self.add(SEQUENCES)
        while True:
            self.step()
            if self.scheduler.result.num_rows == SEQUENCES:
                return

    def step(self) -> float:
        """Run one step and return its seconds."""
        scheduler = self.scheduler
        rows = np.full(SEQUENCES, 7, np.int32)
        began = time.perf_counter()
        scheduler.schedule()
        batch = scheduler.batch
        arrays_of(batch)
        num_rows = batch.num_rows
        if not self._overlap:
            scheduler.commit(rows[:num_rows])
        elif len(waiting := scheduler.uncommitted) == 2:
            scheduler.commit(rows[: waiting[0]])
        _ = scheduler.result.finish
        return time.perf_counter() - began


def measure(
    steps: int, prefix_cache: bool, steady: bool, overlap: bool = False
) -> dict[str, float]:
    """Percentiles in microseconds; without arrivals if `steady`."""

    def full(max_tokens: int) -> Load:
        load = Load(make_scheduler(prefix_cache, overlap), max_tokens, overlap)
        load.fill()
        return load

    load = full(600 if steady else 400)
    seconds = []
    for index in range(steps):
        if steady and index and index % 200 == 0:
            load = full(600)
        seconds.append(load.step())
        if not steady:
            load.add(int(np.count_nonzero(load.scheduler.result.finish)))
    return percentiles(seconds)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p90 and p99 in microseconds."""
    figures = np.percentile(np.array(seconds) * 1e6, [50, 90, 99])
    names = ("p50_us", "p90_us", "p99_us")
    return {name: round(float(value), 1) for name, value in zip(names, figures, strict=True)}


def measure_limit(steps: int) -> dict[str, float]:
    """The limit without bookkeeping: take a view of every array and copy its bytes once."""
    load = Load(make_scheduler(prefix_cache=True), max_tokens=600)
    load.fill()
    load.scheduler.schedule()
    batch = load.scheduler.batch
    targets = [np.empty_like(array) for array in flat(arrays_of(batch))]
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        for source, target in zip(flat(arrays_of(batch)), targets, strict=True):
            np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return percentiles(seconds)


def measure_python(steps: int) -> dict[str, float]:
    """The peer: the same decode step in plain Python, lists per sequence turned into arrays."""
    tokens = [[7] * CONTEXT for _ in range(SEQUENCES)]
    tables = [list(range(BLOCKS_PER_SEQUENCE)) for _ in range(SEQUENCES)]
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        columns = (
            [each[-1] for each in tokens],
            [len(each) - 1 for each in tokens],
            [len(each) for each in tokens],
            [
                table[(len(each) - 1) // BLOCK_SIZE] * BLOCK_SIZE + (len(each) - 1) % BLOCK_SIZE
                for each, table in zip(tokens, tables, strict=True)
            ],
        )
        _ = [np.array(column, np.int32) for column in columns]
        _ = np.array(tables, np.int32)
        for each in tokens:
            each.append(7)
            _ = each[-1] in (2,) or len(each) >= 2 * CONTEXT
        seconds.append(time.perf_counter() - began)
        if len(tokens[0]) == CONTEXT + 200:
            tokens = [each[:CONTEXT] for each in tokens]
    return percentiles(seconds)


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    """Print a table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 400 if (arguments := parser.parse_args()).quick else 4000
    cases: dict[str, dict[str, Any]] = {
        "decode": measure(steps, prefix_cache=True, steady=True),
        "decode, prefix cache off": measure(steps, prefix_cache=False, steady=True),
        "decode, steps overlap": measure(steps, prefix_cache=True, steady=True, overlap=True),
        "decode, arrivals, prompts in chunks": measure(steps, prefix_cache=True, steady=False),
        "limit: views and one copy of the arrays": measure_limit(steps),
        "peer: lists in plain Python": measure_python(steps // 4),
    }
    cases["decode"]["goal_p50_us"] = GOAL_US
    title = f"Runtime per step: {SEQUENCES} decodes, context {CONTEXT}, blocks of {BLOCK_SIZE}"
    print(f"\n{title}\n")
    print(f"| {'what':<40} | p50 us | p90 us | p99 us | goal p50 |")
    print(f"|{'-' * 42}|--------|--------|--------|----------|")
    for name, case in cases.items():
        figures = " | ".join(f"{case[key]:>6.1f}" for key in ("p50_us", "p90_us", "p99_us"))
        print(f"| {name:<40} | {figures} | {case.get('goal_p50_us', ''):>8} |")
    print(
        f"\n{steps} steps each: schedule, a view of every array, commit; no torch in the process."
    )
    if arguments.json:
        rows = [{"what": name, **case} for name, case in cases.items()]
        machine = {"processor": processor(), "python": platform.python_version()}
        report = {"title": title, "machine": machine, "rows": rows, "notes": []}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten to {arguments.json}")


if __name__ == "__main__":
    main()

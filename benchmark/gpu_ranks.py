# SPDX-License-Identifier: Apache-2.0
"""Decode steps of engines that share a mixture's experts, against one engine alone.

Each rank has attention and dense layers of its own sequences and a part of the experts. The model
has random weights and fewer layers; prompts are of 128 tokens. Figures are of the slowest
rank. `./dev bench gpu_dispatch` times the way to the experts and back alone.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmark.generation import prompts
from benchmark.gpu_engine import GpuEngine, add_flags, given_settings, greedy
from benchmark.random_model import SHAPES, experts_of
from benchmark.rank_processes import together
from benchmark.report import Report, parser
from rtp_llm.device import resolve_device
from rtp_llm.distributed.membership import Membership

BATCHES = (1, 16, 64)
PROMPT, STEPS, QUICK_STEPS = 128, 64, 16
COLUMNS = ("ranks", "tokens a rank", "captured", "eager", "tokens/s")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.set_defaults(shape="qwen3-30b-a3b")
    flags.add_argument(
        "--ranks",
        type=int,
        action="append",
        help="may repeat; 1, 2, 4, ... to the number of GPUs, if not given",
    )
    flags.add_argument("--layers", type=int, default=8, help="of the model")
    flags.add_argument("--batch", type=int, action="append", help="sequences of a rank")
    arguments = flags.parse_args()
    mixtures = [name for name, sizes in SHAPES.items() if experts_of(sizes)]
    if arguments.shape not in mixtures:
        flags.error(f"--shape: one of {', '.join(mixtures)}")
    device = resolve_device()
    longest = 2 if device.name == "cpu" else device.device_count()
    sizes = arguments.ranks or [2**n for n in range(longest.bit_length()) if 2**n <= longest]
    if device.name != "cpu" and max(sizes) > longest:
        raise SystemExit(f"{max(sizes)} ranks need as many GPUs, and there are {longest}")
    title = f"Decode steps, {arguments.shape}, {arguments.layers} layers, {device.description()}"
    report = Report(title, COLUMNS)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    for size in sizes:
        add_steps(report, size, arguments, rounds)
    report.notes.append(f"milliseconds, the median of {rounds} rounds")
    report.print()
    report.write(arguments.json)


def add_steps(report: Report, ranks: int, arguments: argparse.Namespace, rounds: int) -> None:
    batches = arguments.batch or BATCHES
    settings = {
        "kv_cache_mem_mb": 4096,
        "max_seq_len": 512,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": max(8192, *batches),
        **given_settings(arguments),
    }
    times: dict[str, list[list[float]]] = {}
    modes = {"captured": True, "eager": False}
    if not resolve_device().supports("graph_capture"):
        del modes["captured"]
    steps = QUICK_STEPS if arguments.quick else STEPS
    for name, graphs in modes.items():
        print(f"steps of {ranks} ranks, {name} ...", flush=True)
        given = {**settings, "enable_graphs": graphs}
        options = (arguments.shape, arguments.layers, batches, rounds, steps, given)
        times[name] = together(ranks, measure_steps, *options)
    for position, batch in enumerate(batches):
        row = {name: max(each[position] for each in found) for name, found in times.items()}
        best = ranks * batch / min(row.values()) * 1e3
        report.add(**{"ranks": ranks, "tokens a rank": batch, "tokens/s": best, **row})


def measure_steps(
    membership: Membership | None,
    shape: str,
    layers: int,
    batches: list[int],
    rounds: int,
    steps: int,
    settings: dict[str, Any],
) -> list[float]:
    """A rank's median milliseconds of a step, for each number of sequences."""
    rank, size = (membership.rank, membership.size) if membership else (0, 1)
    name = f"{shape}-{layers}-layers"
    SHAPES[name] = {**SHAPES[shape], "num_hidden_layers": layers}
    if size > 1:
        settings = {"data_parallel_size": size, "expert_capacity": max(batches), **settings}
    engine = GpuEngine(name, **settings)
    found = []
    for batch in batches:
        times: list[float] = []
        for number in range(1 + rounds):  # the first one warms up
            taken = _round(engine, rank, size, batch, steps)
            times += taken if number else []
        found.append(1e3 * statistics.median(times))
    return found


def _round(engine: GpuEngine, rank: int, size: int, batch: int, tokens: int) -> list[float]:
    """Seconds of the steps in which all sequences decode."""
    vocabulary = engine.engine.limits.vocab_size
    mine = prompts(batch * size, PROMPT)[rank::size]
    engine.add([[token % vocabulary for token in prompt] for prompt in mine], greedy(tokens))
    if engine.built.step_group is not None:
        engine.built.step_group.wake(0)
    steps = []
    while engine.engine.has_work:
        steps.append(engine.step())
    return [seconds for tokens, seconds in steps if tokens == batch]


if __name__ == "__main__":
    main()

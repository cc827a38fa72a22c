# SPDX-License-Identifier: Apache-2.0
"""Clusters: tokens/s, spares, routers, network and cost for 1 to 10,000 GPUs, calculated.

Nothing is measured here: the formulas are in benchmark/cluster_arithmetic.py, their inputs are
measured elsewhere or, where `docs/cluster.md` says so, assumed. Every input is a flag.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

from benchmark.cluster_arithmetic import Costs, Plan, Replica, Workload, limits, plan
from benchmark.report import Report, parser

H200_COPY = 4.25e12
GPUS = (1, 2, 8, 64, 512, 10_000)
REPLICAS = {
    "qwen3-8b-h200": Replica(
        gpus=1,
        batch=256,
        step_seconds=10.0e-3,
        step_context=192,
        # At least half of what two have, which also wait for each other.
        prefill_tokens_per_second=2048 / 28.2e-3 / 2,
        kv_bytes_per_token=147_456,
        copy_bytes_per_second=H200_COPY,
        kv_cache_bytes=117e9,
        source="docs/parallel.md, figures of one H200 and of two",
    ),
    "qwen3-8b-two-h200": Replica(
        gpus=2,
        batch=256,
        step_seconds=5.91e-3,
        step_context=192,
        prefill_tokens_per_second=2048 / 28.2e-3,
        kv_bytes_per_token=147_456 / 2,
        copy_bytes_per_second=H200_COPY,
        kv_cache_bytes=125e9,
        source="docs/parallel.md, figures of two H200s",
    ),
    # Also served and timed (docs/performance_gpu.md): 22,151 tokens/s with prompts of 558 and
    # answers of 523 tokens, 0.74 of what the formula gives without its factor. With prompts of 128
    # and answers of 256 it is 0.85, so the factor of all is the lower one.
    "qwen3-0.6b-h200": Replica(
        gpus=1,
        batch=256,
        step_seconds=3.21e-3,
        step_context=192,
        prefill_tokens_per_second=2048 / 7.26e-3,
        kv_bytes_per_token=114_688,
        copy_bytes_per_second=H200_COPY,
        kv_cache_bytes=132e9,
        source="docs/performance_gpu.md, decoding and first token",
    ),
}
COLUMNS = (
    "GPUs",
    "replicas",
    "tokens/s",
    "machines away",
    "spare machines",
    "tokens/s kept",
    "cells",
    "routers",
    "Gb/s",
    "cost a million",
    "update, min",
    "first bottleneck",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--replica", choices=REPLICAS, default="qwen3-8b-h200")
    flags.add_argument("--tokens-per-second", type=float, help="of a replica, measured by you")
    flags.add_argument("--gpus", type=int, action="append", help=f"default {GPUS}")
    for kind in (Workload, Costs):
        for each in fields(kind):
            convert = int if isinstance(each.default, int) else float
            name = "--" + each.name.replace("_", "-")
            flags.add_argument(name, type=convert, default=each.default, help="default %(default)s")
    arguments = flags.parse_args()
    try:
        report = sized(arguments)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    report.print()
    report.write(arguments.json)


def sized(arguments: argparse.Namespace) -> Report:
    """Return the table. Raises ValueError for impossible inputs."""
    replica = REPLICAS[arguments.replica]
    workload = replace(Workload(), **_named(Workload, arguments))
    costs = replace(Costs(), **_named(Costs, arguments))
    rate = arguments.tokens_per_second or replica.tokens_per_second(workload)
    source = "as given" if arguments.tokens_per_second else replica.source
    report = Report(f"Clusters of {arguments.replica}", COLUMNS)
    for gpus in arguments.gpus or [each for each in GPUS if each >= replica.gpus]:
        _add(report, plan(gpus, replica, rate, workload, costs))
    report.notes.append(
        f"A replica: {replica.gpus} GPUs, {rate:.0f} output tokens/s with prompts of "
        f"{workload.prompt_tokens} and answers of {workload.output_tokens} tokens ({source})."
    )
    full = limits(rate, workload, costs).items()
    report.notes.append(
        "Replicas with which one is full: " + ", ".join(f"{a} {_round(b)}" for a, b in full) + "."
    )
    return report


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _named(kind: type[Workload | Costs], arguments: argparse.Namespace) -> dict[str, float]:
    return {each.name: getattr(arguments, each.name) for each in fields(kind)}


def _add(report: Report, made: Plan) -> None:
    values = (
        made.gpus,
        made.replicas,
        made.tokens_per_second,
        made.machines_away,
        made.spare_machines,
        made.kept_tokens_per_second,
        made.cells,
        made.routers,
        8e-9 * made.network_bytes_per_second,
        made.cost_per_million,
        made.update_seconds / 60,
        ", ".join(f"{what} x{_round(times)}" for what, times in made.bottlenecks) or "GPUs",
    )
    report.add(**dict(zip(COLUMNS, values, strict=True)))


if __name__ == "__main__":
    main()

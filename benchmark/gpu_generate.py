# SPDX-License-Identifier: Apache-2.0
"""Decoding on a GPU: milliseconds a step, against transformers, with graphs and without.

Random weights in bfloat16, with `--setting quantization=fp8` in FP8 blocks; prompts of 128 tokens,
128 new ones. Contenders take turns; the limit is what a step must read, and write of states, over
the rate at which the device copies. With `--mtp K` a layer of multi-token prediction, random too,
drafts K tokens a step; none of them is right, which `tokens a step` shows. `--uniform-routing`: the
experts of a token are chosen evenly at random, as the limit assumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any

from benchmark.generation import prompts
from benchmark.gpu_engine import (
    GpuEngine,
    add_flags,
    add_mtp,
    add_routing,
    given_settings,
    greedy,
    mtp_settings,
    states_mib,
)
from benchmark.gpu_limits import measure_rates
from benchmark.gpu_peers import CompiledTransformers, EagerTransformers, random_model
from benchmark.random_model import SHAPES, config_folder, draft_bytes, step_bytes
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.device import Device, resolve_device

PROMPT, STEPS = 128, 128
BATCHES = (1, 16, 64, 256)
COLUMNS = (
    "batch",
    "ours ms",
    "spread ms",
    "tokens a step",
    "tokens/s",
    "eager ms",
    "transformers ms",
    "compiled ms",
    "limit ms",
    "% of limit",
)
PEERS = ("eager", "transformers", "compiled")
Contenders = dict[str, Callable[[int], float]]


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    add_routing(flags)
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument(
        "--peer",
        choices=(*PEERS, "none"),
        action="append",
        help="eager: ours without graphs; compiled: transformers, minutes to compile; "
        "without the flag the first two",
    )
    add_mtp(flags)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    device = resolve_device()
    report = Report(f"Decoding on {device.description()}, shape {arguments.shape}", COLUMNS)
    report.notes.append(f"{rounds} interleaved rounds; limit: bytes read over the copy rate")
    print("building the contenders ...", flush=True)
    contenders = make_contenders(arguments, device)
    ranks = given_settings(arguments).get("tensor_parallel_size", 1)
    place = _Place(arguments.shape, _kind(arguments), device, arguments.mtp, ranks)
    for batch in arguments.batch or BATCHES:
        print(f"batch {batch} ...", flush=True)
        measure(report, contenders, batch, rounds, place)
    report.print()
    report.write(arguments.json)


def make_contenders(arguments: argparse.Namespace, device: Device) -> Contenders:
    """Name -> seconds of a step at a batch."""
    shape, batches = arguments.shape, arguments.batch or BATCHES
    peers = arguments.peer or ["eager", "transformers"]
    changes = {**_settings(arguments, max(batches)), **given_settings(arguments)}
    make = functools.partial(_Ours, shape, arguments.mtp, evenly=arguments.uniform_routing)
    made: Contenders = {"ours": make(changes)}
    if "eager" in peers:
        made["eager"] = make({**changes, "enable_graphs": False})
    if {"transformers", "compiled"}.intersection(peers):
        model = random_model(config_folder(shape), device)
        if "transformers" in peers:
            made["transformers"] = EagerTransformers(model, device, PROMPT).step_seconds
        if "compiled" in peers:
            made["compiled"] = CompiledTransformers(model, device, PROMPT, STEPS).step_seconds
    return made


def _settings(arguments: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Return this benchmark's own engine settings for a batch size."""
    return {
        "kv_cache_mem_mb": max(12 * 1024, states_mib(arguments.shape, batch)),
        "max_seq_len": 1024,
        "max_running_requests": batch,
        "max_batch_tokens_size": 8192,
        **mtp_settings(arguments.mtp),
    }


class _Ours:
    """Seconds of a step; `tokens`: that the last one gave each sequence, in the mean."""

    def __init__(self, shape: str, drafts: int, changes: dict[str, Any], *, evenly: bool) -> None:
        self._engine = GpuEngine(shape, routes_evenly=evenly, **changes)
        self._size, self._drafts = SHAPES[shape]["vocab_size"], drafts
        self.tokens = 1.0

    def __call__(self, batch: int) -> float:
        """Median time of a step that decodes one token for each sequence; mean with drafts."""
        prompt_ids = [[token % self._size for token in prompt] for prompt in prompts(batch, PROMPT)]
        engine = self._engine
        if self._drafts:
            seconds, self.tokens = engine.mean_step(prompt_ids, STEPS, 1 + self._drafts)
            return seconds
        engine.add(prompt_ids, greedy(STEPS))
        times = []
        while engine.engine.has_work:
            tokens, seconds = engine.step()
            if tokens == batch:
                times.append(seconds)
        return statistics.median(times)


@dataclasses.dataclass(frozen=True)
class _Place:
    """What is measured and where: `kind` is the format of the weights (step_bytes), `drafts` the
    number of MTP drafts, and each of `ranks` reads its own shard."""

    shape: str
    kind: str
    device: Device
    drafts: int = 0
    ranks: int = 1

    def limit(self, batch: int) -> float:
        """Seconds that a step takes at least, for what it reads."""
        context = PROMPT + STEPS // 2
        read = step_bytes(self.shape, self.kind, batch, context, self.drafts)
        if self.drafts:
            read += draft_bytes(self.shape, batch, context, self.drafts)
        return read / self.ranks / measure_rates(self.device).copy


def _kind(arguments: argparse.Namespace) -> str:
    """Return the format of the weights: the `quantization` of `--setting`, else bfloat16."""
    quantization = given_settings(arguments).get("quantization")
    return "bfloat16" if quantization in (None, "none") else str(quantization)


def measure(report: Report, contenders: Contenders, batch: int, rounds: int, place: _Place) -> None:
    """Add one row to the report."""
    runs = {name: lambda run=run: run(batch) for name, run in contenders.items()}
    figures = interleave(runs, rounds)
    ours = figures["ours"]
    limit, own = place.limit(batch), contenders["ours"]
    tokens = own.tokens if isinstance(own, _Ours) else 1.0
    report.add(
        **{
            "batch": batch,
            "ours ms": 1e3 * ours.median,
            "spread ms": tuple(1e3 * value for value in ours.spread),
            "tokens a step": tokens,
            "tokens/s": batch * tokens / ours.median,
            "limit ms": 1e3 * limit,
            "% of limit": 100 * limit / ours.median,
            **{f"{name} ms": 1e3 * figures[name].median for name in PEERS if name in figures},
        }
    )


if __name__ == "__main__":
    main()

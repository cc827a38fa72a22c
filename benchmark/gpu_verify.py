# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts on a GPU: milliseconds a step, against a plain decode step.

Random weights in bfloat16, prompts of 128 tokens, 128 new ones. No draft is ever accepted, so that
a step with drafts computes 1 + k tokens of each sequence and gives one. Drafts need the tokens of
the step before, so the host waits for it, as with n-grams: `waiting` is a plain step with that
wait. `layers` are the layers alone, in graphs: replays between two marks.

With `--ngrams` prompts repeat themselves, and drafts are found: by the host, which waits for the
tokens of each step, and by the device. There, milliseconds are per step of all sequences, and
`tokens` is what a sequence gains in it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Sequence
from typing import Any

from benchmark.generation import prompts
from benchmark.gpu_engine import (
    GpuEngine,
    add_flags,
    add_routing,
    given_settings,
    greedy,
)
from benchmark.random_model import SHAPES
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.config.settings import Settings
from rtp_llm.device import Device, resolve_device
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.native_proposer import ngram_proposer

PROMPT, STEPS, REPLAYS = 128, 128, 20
BATCHES = (1, 16)
COLUMNS = (
    "batch",
    "plain ms",
    "waiting ms",
    "verify ms",
    "verify / plain",
    "verify / waiting",
    "eager verify ms",
    "plain layers ms",
    "verify layers ms",
)


NGRAM_COLUMNS = (
    "batch",
    "prompt",
    "plain ms",
    "host ms",
    "host tokens",
    "device ms",
    "device tokens",
    "plain tokens/s",
    "host tokens/s",
    "device tokens/s",
)
PERIOD = 16  # tokens after which prompts repeat themselves, with --ngrams


class WrongDrafts(DeviceProposer):
    """Drafts for every sequence that are never accepted; made from tokens, like n-grams."""

    needs_tokens = True


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    add_routing(flags)
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--drafts", type=int, default=3, help="draft tokens of a sequence")
    flags.add_argument("--ngrams", action="store_true", help="drafts by n-grams: host and device")
    flags.add_argument("--prompt", type=int, default=PROMPT, help="tokens, with --ngrams")
    arguments = flags.parse_args()
    (compare_matchers if arguments.ngrams else compare_verification)(arguments)


def own_settings(arguments: argparse.Namespace, batches: Sequence[int]) -> dict[str, Any]:
    """Return the settings that all engines share."""
    own = {
        "kv_cache_mem_mb": 4 * 1024,
        "max_seq_len": max(1024, arguments.prompt + 2 * STEPS),
        "max_running_requests": max(batches),
        "max_batch_tokens_size": 8192,
        "speculative_adaptive": False,  # without right drafts there would soon be none
    }
    return {**own, **given_settings(arguments)}


def compare_matchers(arguments: argparse.Namespace) -> None:
    """Compare n-grams matched on the host with n-grams matched on the device."""
    rounds, batches = arguments.rounds or (2 if arguments.quick else 5), arguments.batch or BATCHES
    device, changes = resolve_device(), own_settings(arguments, batches)
    print("building the contenders ...", flush=True)
    evenly = arguments.uniform_routing
    build = functools.partial(GpuEngine, arguments.shape, routes_evenly=evenly)
    ngrams: dict[str, Any] = {
        "speculative": "ngram",
        "num_speculative_tokens": arguments.drafts,
    }
    engines = {
        "plain": build(**changes),
        "host": build(proposer=ngram_proposer(Settings(model="", **ngrams)), **changes),
        "device": build(**changes, **ngrams),
    }
    report = Report(
        f"{arguments.drafts} drafts by n-grams on {device.description()}, shape {arguments.shape}",
        NGRAM_COLUMNS,
    )
    report.notes.append(f"{rounds} interleaved rounds")
    if engines["device"].built.worker.drafter is None:
        report.notes.append("device: this one leaves the matching to the host, too")
    for batch in batches:
        print(f"batch {batch} ...", flush=True)
        measure_matchers(report, engines, batch, 1 + arguments.drafts, rounds, arguments)
    report.print()
    report.write(arguments.json)


def measure_matchers(
    report: Report,
    engines: dict[str, GpuEngine],
    batch: int,
    width: int,
    rounds: int,
    arguments: argparse.Namespace,
) -> None:
    """Add one row to the report."""
    size, repeats = SHAPES[arguments.shape]["vocab_size"], -(-arguments.prompt // PERIOD)
    prompt_ids = [[token % size for token in part] * repeats for part in prompts(batch, PERIOD)]
    steps: dict[str, list[float]] = {name: [] for name in engines}

    def run(name: str) -> float:
        count, seconds = decode(engines[name], prompt_ids, width)
        steps[name].append(seconds / count)
        return seconds

    figures = interleave({name: functools.partial(run, name) for name in engines}, rounds)
    row: dict[str, float] = {"batch": batch, "prompt": len(prompt_ids[0])}
    for name, figure in figures.items():
        a_step = statistics.median(steps[name])
        row[f"{name} ms"] = 1e3 * a_step
        row[f"{name} tokens/s"] = batch * (STEPS - 1) / figure.median
        row[f"{name} tokens"] = (STEPS - 1) * a_step / figure.median
    report.add(**row)


def decode(engine: GpuEngine, prompt_ids: list[list[int]], width: int) -> tuple[int, float]:
    """Return (steps, seconds), not counting the steps that compute prompts."""
    engine.add(prompt_ids, greedy(STEPS))
    steps, seconds = 0, 0.0
    while engine.engine.has_work:
        tokens, taken = engine.step()
        if steps or tokens <= len(prompt_ids) * width:
            steps, seconds = steps + bool(tokens), seconds + taken
    return steps, seconds


def compare_verification(arguments: argparse.Namespace) -> None:
    """Measure steps with and without drafts, none of which is correct."""
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    batches, width = arguments.batch or BATCHES, 1 + arguments.drafts
    device = resolve_device()
    changes = own_settings(arguments, batches)
    print("building the contenders ...", flush=True)
    evenly = arguments.uniform_routing
    build = functools.partial(GpuEngine, arguments.shape, routes_evenly=evenly)
    drafts = functools.partial(WrongDrafts, arguments.drafts)
    engines = {
        "plain": build(**changes),
        "waiting": build(**{**changes, "enable_overlap": False}),
        "verify": build(proposer=drafts(), **changes),
        "eager verify": build(proposer=drafts(), **{**changes, "enable_graphs": False}),
    }
    title = f"Verifying {arguments.drafts} drafts on {device.description()}"
    report = Report(f"{title}, shape {arguments.shape}", COLUMNS)
    report.notes.append(f"{rounds} interleaved rounds")
    for batch in batches:
        print(f"batch {batch} ...", flush=True)
        measure(report, engines, batch, width, rounds, device, arguments.shape)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report,
    engines: dict[str, GpuEngine],
    batch: int,
    width: int,
    rounds: int,
    device: Device,
    shape: str,
) -> None:
    """Add one row to the report."""
    size = SHAPES[shape]["vocab_size"]
    prompt_ids = [[token % size for token in prompt] for prompt in prompts(batch, PROMPT)]
    widths = {name: width if "verify" in name else 1 for name in engines}
    figures = interleave(
        {
            name: functools.partial(step_seconds, engine, prompt_ids, widths[name])
            for name, engine in engines.items()
        },
        rounds,
    )
    median = {name: figure.median for name, figure in figures.items()}
    layers = {
        f"{name} layers ms": seconds
        for name in ("plain", "verify")
        if (seconds := layers_ms(engines[name], batch, widths[name], device))
    }
    report.add(
        **{
            "batch": batch,
            **{f"{name} ms": 1e3 * value for name, value in median.items()},
            "verify / plain": median["verify"] / median["plain"],
            "verify / waiting": median["verify"] / median["waiting"],
            **layers,
        }
    )


def step_seconds(engine: GpuEngine, prompt_ids: list[list[int]], width: int) -> float:
    """Mean time of a step from the first one on in which all sequences have `width` tokens."""
    engine.add(prompt_ids, greedy(STEPS))
    steps, seconds = 0, 0.0
    while engine.engine.has_work:
        tokens, taken = engine.step()
        if steps or tokens == len(prompt_ids) * width:
            steps, seconds = steps + bool(tokens), seconds + taken
    return seconds / steps


def layers_ms(engine: GpuEngine, batch: int, width: int, device: Device) -> float | None:
    """Time one replay on the state of the last step; None without a graph of this size."""
    graphs = engine.built.worker.runner._graphs
    captured = graphs and graphs._captured.get(GraphSize(batch * width, batch, width))
    if not captured:
        return None
    times = []
    begin, end = device.new_event(timed=True), device.new_event(timed=True)
    for _ in range(REPLAYS):
        begin.record()
        captured.graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


if __name__ == "__main__":
    main()

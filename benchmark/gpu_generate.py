"""Decoding on a GPU: milliseconds a step beside transformers, with graphs and without.

Random weights in bfloat16, with `--setting quantization=fp8` in FP8 blocks; prompts of 128 tokens,
128 new ones. Contenders take turns; the limit is what a step must read over the rate at which the
device copies.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable

from benchmark.generation import prompts
from benchmark.gpu_engine import GpuEngine, add_flags, given_settings, greedy
from benchmark.gpu_limits import measure_rates
from benchmark.gpu_peers import CompiledTransformers, EagerTransformers, random_model
from benchmark.random_model import SHAPES, config_folder, step_bytes
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.device import Device, resolve_device

PROMPT, STEPS = 128, 128
BATCHES = (1, 16, 64, 256)
COLUMNS = (
    "batch",
    "ours ms",
    "spread ms",
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
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument(
        "--peer",
        choices=(*PEERS, "none"),
        action="append",
        help="eager: ours without graphs; compiled: transformers, minutes to compile; "
        "without the flag the first two",
    )
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    device = resolve_device()
    report = Report(f"Decoding on {device.description()}, shape {arguments.shape}", COLUMNS)
    report.notes.append(f"{rounds} interleaved rounds; limit: bytes read over the copy rate")
    print("building the contenders ...", flush=True)
    contenders = make_contenders(arguments, device)
    for batch in arguments.batch or BATCHES:
        print(f"batch {batch} ...", flush=True)
        measure(
            report, contenders, batch, rounds, _Place(arguments.shape, _kind(arguments), device)
        )
    report.print()
    report.write(arguments.json)


def make_contenders(arguments: argparse.Namespace, device: Device) -> Contenders:
    """Name -> seconds of a step at a batch."""
    shape, batches = arguments.shape, arguments.batch or BATCHES
    peers = arguments.peer or ["eager", "transformers"]
    own = {
        "kv_cache_mem_mb": 12 * 1024,
        "max_seq_len": 1024,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": 8192,
    }
    changes = {**own, **given_settings(arguments)}
    made: Contenders = {"ours": _ours(shape, **changes)}
    if "eager" in peers:
        made["eager"] = _ours(shape, **{**changes, "enable_cuda_graph": False})
    if {"transformers", "compiled"}.intersection(peers):
        model = random_model(config_folder(shape), device)
        if "transformers" in peers:
            made["transformers"] = EagerTransformers(model, device, PROMPT).step_seconds
        if "compiled" in peers:
            made["compiled"] = CompiledTransformers(model, device, PROMPT, STEPS).step_seconds
    return made


def _ours(shape: str, **changes: object) -> Callable[[int], float]:
    engine, size = GpuEngine(shape, **changes), SHAPES[shape]["vocab_size"]

    def step_seconds(batch: int) -> float:
        """Median time of a step that decodes one token for each sequence."""
        asked = [[token % size for token in prompt] for prompt in prompts(batch, PROMPT)]
        engine.add(asked, greedy(STEPS))
        times = []
        while engine.engine.has_work:
            tokens, seconds = engine.step()
            if tokens == batch:
                times.append(seconds)
        return statistics.median(times)

    return step_seconds


@dataclasses.dataclass(frozen=True)
class _Place:
    """What is measured and where; `kind` is how weights are kept (step_bytes)."""

    shape: str
    kind: str
    device: Device


def _kind(arguments: argparse.Namespace) -> str:
    """fp8 with `--setting quantization=fp8`."""
    quantization = given_settings(arguments).get("quantization")
    return "bfloat16" if quantization in (None, "none") else str(quantization)


def measure(report: Report, contenders: Contenders, batch: int, rounds: int, place: _Place) -> None:
    """One row."""
    runs = {name: lambda run=run: run(batch) for name, run in contenders.items()}  # type: ignore[misc]
    figures = interleave(runs, rounds)
    ours = figures["ours"]
    read = step_bytes(place.shape, place.kind, batch, PROMPT + STEPS // 2)
    limit = read / measure_rates(place.device).copy
    report.add(
        **{
            "batch": batch,
            "ours ms": 1e3 * ours.median,
            "spread ms": tuple(1e3 * value for value in ours.spread),
            "tokens/s": batch / ours.median,
            "limit ms": 1e3 * limit,
            "% of limit": 100 * limit / ours.median,
            **{f"{name} ms": 1e3 * figures[name].median for name in PEERS if name in figures},
        }
    )


if __name__ == "__main__":
    main()

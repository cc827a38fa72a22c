# SPDX-License-Identifier: Apache-2.0
"""Decoding on the CPU: milliseconds a step, against transformers and llama.cpp, same weights.

Random weights in the shape of Qwen3-0.6B and in small shapes (hidden 512, 8 layers; as Qwen3-Next
and Qwen3.5-MoE with 32 experts, 95 million parameters), prompts of 64 tokens. Contenders take
turns; shown are the median of the rounds, their spread, and the limit that the machine sets,
measured in the same rounds: every step reads all weights once, and multiplies with them once for
each sequence.
"""

from __future__ import annotations

import functools
import gc
import pathlib
import time
from collections.abc import Callable

import torch

from benchmark.bandwidth import read_bandwidth
from benchmark.generation import CPU_TIME, OurEngine, Timer, Transformers
from benchmark.hybrid_shapes import HYBRID_SHAPES
from benchmark.llama_cpp_peer import LlamaCpp, why_not_run
from benchmark.product_rate import product_rate
from benchmark.random_model import model_folder, step_bytes, step_operations
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave

PROMPT = 64
_HYBRID: dict[str, tuple[int, ...]] = {"float32": (1, 4, 16), "bfloat16": (1, 4, 16)}
# shape -> (batch sizes for each kind of weights, steps measured in a round)
CELLS: dict[str, tuple[dict[str, tuple[int, ...]], int]] = {
    "small": ({"float32": (1, 8, 32), "bfloat16": (1, 8, 32), "int8": (1, 8, 32)}, 48),
    "qwen3-0.6b": ({"float32": (1, 8), "bfloat16": (1, 8), "int8": (1, 8)}, 12),
    "small-next": (_HYBRID, 48),
    "small-qwen3.5-moe": (_HYBRID, 48),
}
PEERS = ("float32", "bfloat16")
COLUMNS = (
    "shape",
    "batch",
    "weights",
    "ours ms",
    "spread ms",
    "tokens/s",
    "transformers ms",
    "same weights",
    "x float32",
    "llama.cpp ms",
    "x llama.cpp",
    "limit ms",
    "% of limit",
    "limited by",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=list(CELLS), action="append")
    flags.add_argument("--batch", type=int, action="append", help="only these batch sizes")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--cpu-time", action="store_true", help=CPU_TIME)
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    report = Report("Decoding on the CPU, against transformers.generate", COLUMNS)
    report.notes.append(
        "same weights: transformers' time with this type of weights over ours. x float32: "
        "transformers' float32 time over ours. limit: the greater of the bytes of weights and KV "
        "cache that a step reads over the read bandwidth, and of its products over the rate of "
        "torch's products with the same type."
    )
    shapes = arguments.shape or (["small"] if arguments.quick else list(CELLS))
    no_llama = "not with --cpu-time" if arguments.cpu_time else why_not_run(shapes)
    report.notes.append(f"llama.cpp: {no_llama or 'one stream, the same weights as GGUF'}.")
    for shape in shapes:
        with_llama = no_llama is None and shape not in HYBRID_SHAPES
        timer = time.process_time if arguments.cpu_time else time.perf_counter
        measure_shape(
            report, shape, arguments.batch, rounds, arguments.threads, timer, with_llama=with_llama
        )
    report.print()
    report.write(arguments.json)


def measure_shape(
    report: Report,
    shape: str,
    only: list[int] | None,
    rounds: int,
    threads: int,
    timer: Timer,
    *,
    with_llama: bool,
) -> None:
    """Measure the cells of a shape: one batch size after the other, all contenders in turn."""
    kinds, steps = CELLS[shape]
    folder = model_folder(shape)
    engines = {kind: _engine(folder, kind, threads, timer) for kind in kinds}
    peers = {kind: Transformers(folder, kind, timer) for kind in PEERS if kind in kinds}
    llamas = {kind: LlamaCpp(folder, kind, threads) for kind in kinds if with_llama}
    sizes = {batch for batches in kinds.values() for batch in batches}
    for batch in sorted(sizes if only is None else sizes.intersection(only)):
        contenders: dict[str, Callable[[], float]] = {"bandwidth": read_bandwidth}
        for kind in kinds:
            contenders[f"products {kind}"] = functools.partial(product_rate, kind)
            contenders[f"ours {kind}"] = _decode(engines[kind], batch, steps)
        for kind, peer in peers.items():
            contenders[f"transformers {kind}"] = _decode(peer, batch, steps)
        for kind, llama in llamas.items() if batch == 1 else ():
            contenders[f"llama.cpp {kind}"] = _decode(llama, batch, steps)
        figures = interleave(contenders, rounds)
        for kind in kinds:
            read = step_bytes(shape, kind, batch, PROMPT + steps // 2)
            _add_row(report, shape, batch, kind, figures, read)
    del engines, peers, llamas
    gc.collect()


def _engine(folder: pathlib.Path, kind: str, threads: int, timer: Timer) -> OurEngine:
    quantization = "int8" if kind == "int8" else "none"
    return OurEngine(folder, "float32" if kind == "int8" else kind, quantization, threads, timer)


def _decode(
    contender: OurEngine | Transformers | LlamaCpp, batch: int, steps: int
) -> Callable[[], float]:
    return lambda: contender.decode_seconds(batch, PROMPT, steps)


def _add_row(
    report: Report,
    shape: str,
    batch: int,
    kind: str,
    figures: dict[str, Figure],
    read: float,
) -> None:
    ours = figures[f"ours {kind}"]
    float32 = figures["transformers float32"].median
    same = figures.get(f"transformers {kind}")
    llama = figures.get(f"llama.cpp {kind}")
    reading = read / figures["bandwidth"].median
    multiplying = step_operations(shape, batch) / figures[f"products {kind}"].median
    limit = max(reading, multiplying)
    report.add(
        **{
            "shape": shape,
            "batch": batch,
            "weights": kind,
            "ours ms": 1e3 * ours.median,
            "spread ms": tuple(1e3 * value for value in ours.spread),
            "tokens/s": batch / ours.median,
            "transformers ms": None if same is None else 1e3 * same.median,
            "same weights": None if same is None else same.median / ours.median,
            "x float32": float32 / ours.median,
            "llama.cpp ms": None if llama is None else 1e3 * llama.median,
            "x llama.cpp": None if llama is None else llama.median / ours.median,
            "limit ms": 1e3 * limit,
            "% of limit": 100 * limit / ours.median,
            "read GB/s": figures["bandwidth"].median / 1e9,
            "limited by": "reading" if limit == reading else "products",
        }
    )


if __name__ == "__main__":
    main()

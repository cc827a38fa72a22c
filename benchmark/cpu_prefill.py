# SPDX-License-Identifier: Apache-2.0
"""Prompts on the CPU: tokens a second of a long prompt, against transformers and llama.cpp.

Random weights in the shape of Qwen3-0.6B (--quick: the small shape) and in small shapes of
Qwen3-Next and Qwen3.5-MoE (hidden 512, 8 layers, 32 experts). Contenders take turns; shown
are the median of the rounds and their spread, and how close that is to the rate at which torch's
libraries multiply matrices in the same rounds.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable

import torch

from benchmark.generation import CPU_TIME, OurEngine, Timer, Transformers
from benchmark.hybrid_shapes import HYBRID_SHAPES
from benchmark.llama_cpp_peer import LlamaCpp, why_not_run
from benchmark.product_rate import product_rate
from benchmark.random_model import model_folder, prompt_operations
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave

CELLS = {  # shape -> lengths
    "small": (2048,),
    "qwen3-0.6b": (2048,),
    "small-next": (512, 2048),
    "small-qwen3.5-moe": (512, 2048),
}
DEFAULT = ["qwen3-0.6b", "small-next", "small-qwen3.5-moe"]
KINDS = ("float32", "bfloat16")
COLUMNS = (
    "shape",
    "prompt",
    "engine",
    "weights",
    "tokens/s",
    "spread",
    "x transformers",
    "x float32",
    "limit tokens/s",
    "% of limit",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=list(CELLS), action="append")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--cpu-time", action="store_true", help=CPU_TIME)
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    report = Report("Prompts on the CPU", COLUMNS)
    report.notes.append(
        "x transformers: with the same type of weights. x float32: over transformers in float32. "
        "limit: every product of the prompt at the rate of torch's own with this type."
    )
    shapes = arguments.shape or (["small"] if arguments.quick else DEFAULT)
    no_llama = "not with --cpu-time" if arguments.cpu_time else why_not_run(shapes)
    report.notes.append(f"llama.cpp: {no_llama or 'the same weights as GGUF'}.")
    for shape in shapes:
        with_llama = no_llama is None and shape not in HYBRID_SHAPES
        timer = time.process_time if arguments.cpu_time else time.perf_counter
        measure(report, shape, rounds, arguments.threads, timer, with_llama=with_llama)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report, shape: str, rounds: int, threads: int, timer: Timer, *, with_llama: bool
) -> None:
    """One row for each length, engine and type of weights."""
    folder = model_folder(shape)
    contenders: dict[tuple[str, str], OurEngine | Transformers | LlamaCpp] = {}
    for kind in KINDS:
        contenders["ours", kind] = OurEngine(folder, kind, "none", threads, timer)
        contenders["transformers", kind] = Transformers(folder, kind, timer)
        if with_llama:
            contenders["llama.cpp", kind] = LlamaCpp(folder, kind, threads)
    for length in CELLS[shape]:
        runs: dict[str, Callable[[], float]] = {
            " ".join(key): functools.partial(_rate, engine, length)
            for key, engine in contenders.items()
        }
        runs |= {f"products {kind}": functools.partial(product_rate, kind) for kind in KINDS}
        _add_rows(report, shape, length, interleave(runs, rounds))
    contenders.clear()
    gc.collect()


def _rate(engine: OurEngine | Transformers | LlamaCpp, length: int) -> float:
    return length / engine.prefill_seconds(length)


def _add_rows(report: Report, shape: str, length: int, figures: dict[str, Figure]) -> None:
    operations = prompt_operations(shape, length) / length
    for name, figure in figures.items():
        engine, kind = name.split(" ")
        if engine == "products":
            continue
        limit = figures[f"products {kind}"].median / operations
        report.add(
            **{
                "shape": shape,
                "prompt": length,
                "engine": engine,
                "weights": kind,
                "tokens/s": figure.median,
                "spread": figure.spread,
                "x transformers": figure.median / figures[f"transformers {kind}"].median,
                "x float32": figure.median / figures["transformers float32"].median,
                "limit tokens/s": limit,
                "% of limit": 100 * figure.median / limit,
            }
        )


if __name__ == "__main__":
    main()

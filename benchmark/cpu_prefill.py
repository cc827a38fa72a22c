"""Prompts on the CPU: tokens a second of a 2,048-token prompt beside transformers and llama.cpp.

Random weights in the shape of Qwen3-0.6B (--quick: the small shape). Contenders take turns; shown
are the median of the rounds and their spread, and how close that is to the rate at which torch's
libraries multiply matrices in the same rounds.
"""

from __future__ import annotations

import functools
import gc

import torch

from benchmark.generation import OurEngine, Transformers
from benchmark.llama_cpp_peer import LlamaCpp, why_not_run
from benchmark.product_rate import product_rate
from benchmark.random_model import model_folder, prompt_operations
from benchmark.report import Report, parser
from benchmark.rounds import interleave

PROMPT = 2048
KINDS = ("float32", "bfloat16")
COLUMNS = (
    "shape",
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
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = "small" if arguments.quick else "qwen3-0.6b"
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    report = Report(f"A prompt of {PROMPT} tokens on the CPU", COLUMNS)
    report.notes.append(
        "x transformers: with the same type of weights. x float32: over transformers in float32. "
        "limit: every product of the prompt at the rate of torch's own with this type."
    )
    no_llama = why_not_run()
    report.notes.append(f"llama.cpp: {no_llama or 'the same weights as GGUF'}.")
    measure(report, shape, rounds, arguments.threads, with_llama=no_llama is None)
    report.print()
    report.write(arguments.json)


def measure(report: Report, shape: str, rounds: int, threads: int, *, with_llama: bool) -> None:
    """One row for each engine and type of weights."""
    folder = model_folder(shape)
    contenders = {}
    for kind in KINDS:
        contenders["ours", kind] = OurEngine(folder, kind, "none", threads)
        contenders["transformers", kind] = Transformers(folder, kind)
        if with_llama:
            contenders["llama.cpp", kind] = LlamaCpp(folder, kind, threads)
    runs = {
        " ".join(key): lambda engine=engine: PROMPT / engine.prefill_seconds(PROMPT)
        for key, engine in contenders.items()
    }
    runs |= {f"products {kind}": functools.partial(product_rate, kind) for kind in KINDS}
    figures = interleave(runs, rounds)
    operations = prompt_operations(shape, PROMPT) / PROMPT
    for engine, kind in contenders:
        figure = figures[f"{engine} {kind}"]
        limit = figures[f"products {kind}"].median / operations
        report.add(
            **{
                "shape": shape,
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
    contenders.clear()
    gc.collect()


if __name__ == "__main__":
    main()

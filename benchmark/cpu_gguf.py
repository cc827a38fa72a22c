# SPDX-License-Identifier: Apache-2.0
"""GGUF files on the CPU, against llama.cpp on the same file: one stream, eight, and prompts.

Random weights of the types that llama.cpp's recipes Q4_K_M and Q8_0 give, in the shapes of Gemma 3
270M, Qwen3-0.6B and a third of the layers of Qwen3-4B. Contenders take turns, with the same number
of threads; shown are the medians of the rounds and the share of the memory's read rate.
"""

from __future__ import annotations

import functools
import gc
import pathlib
import tempfile
import time

import torch

from benchmark.bandwidth import read_bandwidth
from benchmark.generation import OurEngine
from benchmark.gguf_shapes import RECIPES, block_bytes, gguf_file
from benchmark.llama_cpp_file import LlamaCppFile
from benchmark.llama_cpp_peer import why_not_run
from benchmark.report import Report, parser
from benchmark.rounds import interleave

LAYERS = {"small": 0, "gemma3-270m": 0, "qwen3-0.6b": 0, "qwen3-4b": 12}  # 0: all
STREAMS = 8
PROMPT, LONG_PROMPT, STEPS = 64, 512, 12
EIGHT, LONG = f"{STREAMS} streams", f"prompt of {LONG_PROMPT}"
WHATS = ("1 stream", EIGHT, LONG)
COLUMNS = (
    "shape",
    "recipe",
    "what",
    "ours ms",
    "spread ms",
    "llama.cpp ms",
    "x llama.cpp",
    "read GB/s",
    "% of read rate",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=list(LAYERS), action="append")
    flags.add_argument("--recipe", choices=RECIPES, action="append")
    flags.add_argument("--what", choices=WHATS, action="append")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--dtype", default="bfloat16", help="of our activations")
    flags.add_argument("--folder", type=pathlib.Path, help="keep the files here")
    flags.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the CPU time of all threads, for a machine that other work keeps busy",
    )
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    report = Report("GGUF files on the CPU, against llama.cpp", COLUMNS)
    timer = time.process_time if arguments.cpu_time else time.perf_counter
    shapes = arguments.shape or (["small"] if arguments.quick else list(LAYERS)[1:])
    no_llama = why_not_run(shapes)
    if no_llama is not None:
        raise SystemExit(f"llama.cpp and the package gguf are needed: {no_llama}")
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or pathlib.Path(temporary)
        for shape in shapes:
            for recipe in arguments.recipe or RECIPES:
                file = gguf_file(shape, recipe, folder, LAYERS[shape])
                ours = OurEngine(file, arguments.dtype, "none", arguments.threads, timer)
                peer = LlamaCppFile(file, arguments.threads, STREAMS, timer)
                for what in arguments.what or WHATS:
                    measure(report, shape, recipe, what, ours, peer, rounds)
                del ours, peer
                gc.collect()
    report.print()
    report.write(arguments.json)


def measure(
    report: Report,
    shape: str,
    recipe: str,
    what: str,
    ours: OurEngine,
    peer: LlamaCppFile,
    rounds: int,
) -> None:
    """Add a row."""
    figures = interleave(
        {
            "ours": functools.partial(_seconds, what, ours),
            "llama.cpp": functools.partial(_seconds, what, peer),
            "bandwidth": read_bandwidth,
        },
        rounds,
    )
    read = block_bytes(shape, recipe, LAYERS[shape])
    mine, theirs = figures["ours"], figures["llama.cpp"]
    report.add(
        **{
            "shape": shape,
            "recipe": recipe,
            "what": what,
            "ours ms": 1e3 * mine.median,
            "spread ms": tuple(1e3 * value for value in mine.spread),
            "llama.cpp ms": 1e3 * theirs.median,
            "x llama.cpp": theirs.median / mine.median,
            "read GB/s": read / mine.median / 1e9,
            "% of read rate": 100 * read / mine.median / figures["bandwidth"].median,
        }
    )


def _seconds(what: str, engine: OurEngine | LlamaCppFile) -> float:
    if what == LONG:
        return engine.prefill_seconds(LONG_PROMPT)
    return engine.decode_seconds(STREAMS if what == EIGHT else 1, PROMPT, STEPS)


if __name__ == "__main__":
    main()

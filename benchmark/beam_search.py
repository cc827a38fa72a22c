# SPDX-License-Identifier: Apache-2.0
"""Beam search: a step of beams, against a step of as many sequences that are only sampled.

Random weights. Both sides decode the same prompts for the same number of tokens with the same
engine, so they take the same number of steps; a beam's step also chooses among the candidates and
forks the cache. Contenders take turns; shown are the medians of the rounds and the spread of their
ratio. The goal is at most 1.15.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmark.generation import CPU_TIME
from benchmark.random_model import SHAPES
from benchmark.random_tokenizer import dummy_folder
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave
from rtp_llm import LLM, BeamSearchParams, SamplingParams

PROMPT = 32
COLUMNS = ("shape", "requests", "width", "plain ms", "beams ms", "x plain", "spread")


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    prompts = random_prompts(arguments.requests)
    sampling = SamplingParams(n=arguments.width, max_tokens=arguments.tokens, ignore_eos=True)
    beams = BeamSearchParams(
        beam_width=arguments.width, max_tokens=arguments.tokens, ignore_eos=True
    )
    settings: dict[str, Any] = {"load_format": "dummy", "max_seq_len": 512}
    settings |= {
        "device_type": arguments.device,
        "dtype": arguments.dtype,
        "num_threads": arguments.threads,
        "kv_cache_mem_mb": arguments.kv_cache_mem_mb,
    }
    with LLM(str(dummy_folder(arguments.shape)), **settings) as llm:
        work: dict[str, Callable[[], Any]] = {
            "plain": lambda: llm.generate(prompts, sampling, use_tqdm=False),
            "beams": lambda: llm.beam_search(prompts, beams, use_tqdm=False),
        }
        steps = arguments.tokens
        turns = {name: functools.partial(step_ms, work[name], steps, clock) for name in work}
        gc.collect()
        gc.freeze()  # as engine processes do: a full collection takes longer than a hundred steps
        figures = interleave(turns, arguments.rounds)
    report = Report("Beam search, time of a step", COLUMNS)
    pairs = zip(figures["beams"].values, figures["plain"].values, strict=True)
    ratio = Figure(tuple(ours / plain for ours, plain in pairs))
    report.add(
        shape=arguments.shape,
        requests=arguments.requests,
        width=arguments.width,
        spread=ratio.spread,
        **{"plain ms": figures["plain"].median, "beams ms": figures["beams"].median},
        **{"x plain": ratio.median},
    )
    report.print()
    report.write(arguments.json)


def _arguments() -> argparse.Namespace:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=list(SHAPES), default="small")
    flags.add_argument("--requests", type=int, default=8)
    flags.add_argument("--width", type=int, default=8)
    flags.add_argument("--tokens", type=int, default=32, help="of each sequence")
    flags.add_argument("--rounds", type=int, default=9)
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--dtype", default="float32")
    flags.add_argument("--kv-cache-mem-mb", type=int, default=512)
    flags.add_argument("--cpu-time", action="store_true", help=CPU_TIME)
    return flags.parse_args()


def step_ms(call: Callable[[], Any], steps: int, clock: Callable[[], float]) -> float:
    """Return the milliseconds of one of `steps`, the prompts' own step among them."""
    began = clock()
    call()
    return (clock() - began) / steps * 1e3


def random_prompts(count: int) -> list[list[int]]:
    """Token ids, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 250, (PROMPT,), generator=generator).tolist() for _ in range(count)]


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Embeddings on a GPU: sentences a second, and the latency of one, against vLLM's pooling.

Random bfloat16 weights in the shapes of BGE-large (an encoder) and Qwen3-Embedding-0.6B (a decoder
that embeds by the last token). All contenders take lists of token ids in this run, in turn, each
through its Python API and with steps of up to 16,384 tokens; no prefix cache. Shown are medians of
the rounds, and the spread of our share of vLLM's time. The limit is every product of the texts at
the rate at which the device multiplies large matrices or, for few tokens, reading all weights once
at the rate at which it copies. `--vllm`: the PYTHONPATH of an installed vLLM; it runs in a process
of its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmark.encoder_shapes import (
    DECODER_SHAPES,
    TOKENS,
    embedder_folder,
    embedding_operations,
    embedding_weights,
)
from benchmark.gpu_engine import given_settings
from benchmark.gpu_limits import Rates, measure_rates
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave
from rtp_llm import LLM
from rtp_llm.device import resolve_device

SHAPES = ("bge-large", "qwen3-embedding-0.6b")
LENGTHS = (32, 512)
BATCHES = (1, 256)
LONGEST, STEP_TOKENS = 512, 16384
ROUND_SECONDS = 0.3
COLUMNS = (
    "shape",
    "tokens",
    "batch",
    "ms",
    "spread ms",
    "sentences/s",
    "eager ms",
    "vllm ms",
    "vllm sentences/s",
    "x vllm",
    "spread",
    "limit ms",
    "% of limit",
)
Contender = Callable[[int, int, int], float]  # (batch, length, repeats) -> seconds of a call


class PeerError(RuntimeError):
    """The process of a peer has ended."""


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=["tiny", *SHAPES], action="append")
    flags.add_argument("--length", type=int, action="append")
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--vllm", metavar="PATHS", help="the PYTHONPATH of an installed vLLM")
    flags.add_argument("--eager", action="store_true", help="ours without graphs, too")
    flags.add_argument("--setting", metavar="NAME=VALUE", action="append", default=[])
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 7)
    device = resolve_device()
    report = Report(f"Embeddings on {device.description()}, bfloat16", COLUMNS)
    rates = measure_rates(device)
    report.notes.append(
        f"{rounds} interleaved rounds; limit: {rates.products / 1e12:.3g} TFLOP/s of products, "
        f"{rates.copy / 1e12:.3g} TB/s of copies"
    )
    for shape in arguments.shape or SHAPES:
        print(f"{shape}: starting the contenders ...", flush=True)
        with contextlib.ExitStack() as stack:
            contenders = start(stack, shape, arguments)
            for length in arguments.length or LENGTHS:
                for batch in arguments.batch or BATCHES:
                    add_cell(report, contenders, (shape, length, batch), rounds, rates)
    report.print()
    report.write(arguments.json)


def start(stack: contextlib.ExitStack, shape: str, arguments: Any) -> dict[str, Contender]:
    """Start all contenders of a shape; vLLM first, as it measures the memory that it finds free."""
    folder, contenders = embedder_folder(shape), {}
    if arguments.vllm:
        try:
            contenders["vllm"] = stack.enter_context(vllm_peer(folder, arguments.vllm))
        except PeerError as error:
            print(f"without vLLM: {error}", flush=True)
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "task": "embed",
        "max_seq_len": LONGEST,
        "max_batch_tokens_size": STEP_TOKENS,
        "max_running_requests": 256,
        "dtype": "bfloat16",
    }
    if shape in DECODER_SHAPES:
        settings |= {"kv_cache_mem_mb": 12 * 1024, "reuse_cache": False}
    settings |= given_settings(arguments)
    contenders["ours"] = stack.enter_context(ours(folder, settings))
    if arguments.eager:
        contenders["eager"] = stack.enter_context(ours(folder, settings | {"enable_graphs": False}))
    return contenders


@contextlib.contextmanager
def ours(folder: pathlib.Path, settings: dict[str, Any]) -> Iterator[Contender]:
    """Our engine in this process, with its graphs captured."""
    with LLM(folder, **settings) as engine:
        engine.prepare()

        def seconds(batch: int, length: int, repeats: int) -> float:
            prompts = random_texts(batch, length)
            began = time.perf_counter()
            for _ in range(repeats):
                engine.embed(prompts, use_tqdm=False)
            return (time.perf_counter() - began) / repeats

        yield seconds


@contextlib.contextmanager
def vllm_peer(folder: pathlib.Path, paths: str) -> Iterator[Contender]:
    """The process of processes/vllm_embeddings.py; its log goes to standard error."""
    program = pathlib.Path(__file__).parent / "processes/vllm_embeddings.py"
    process = subprocess.Popen(
        [sys.executable, "-P", program, folder, str(LONGEST), str(STEP_TOKENS)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def answer(word: str) -> str:
        for line in process.stdout or ():
            if line.startswith(word + " "):
                return line.split()[1]
            print(line, end="", file=sys.stderr, flush=True)
        raise PeerError(f"it ended with status {process.wait()}")

    def seconds(batch: int, length: int, repeats: int) -> float:
        assert process.stdin is not None
        print(json.dumps([batch, length, repeats]), file=process.stdin, flush=True)
        return float(answer("seconds"))

    try:
        print(f"vLLM {answer('ready')} is ready", flush=True)
        yield seconds
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def random_texts(batch: int, length: int) -> list[list[int]]:
    """Token ids, the same ones every time; those of processes/vllm_embeddings.py, too."""
    chance = random.Random(0)
    return [[chance.randrange(1, TOKENS) for _ in range(length)] for _ in range(batch)]


def add_cell(
    report: Report,
    contenders: dict[str, Contender],
    cell: tuple[str, int, int],
    rounds: int,
    rates: Rates,
) -> None:
    """Measure texts of one length in batches of one size, and add the row."""
    shape, length, batch = cell
    repeats = {}
    for name, contender in contenders.items():
        contender(batch, length, 3)  # what is compiled or captured at first use
        repeats[name] = max(2, int(ROUND_SECONDS / contender(batch, length, 2)))
    turns = {
        name: functools.partial(contender, batch, length, repeats[name])
        for name, contender in contenders.items()
    }
    figures = interleave(turns, rounds)
    own = figures["ours"]
    work = embedding_operations(shape, [length] * batch)
    limit = rates.seconds(2 * embedding_weights(shape), work)
    row: dict[str, Any] = {"shape": shape, "tokens": length, "batch": batch}
    row |= {"ms": own.median * 1e3, "spread ms": tuple(1e3 * each for each in own.spread)}
    row |= {"sentences/s": batch / own.median}
    row |= {"limit ms": limit * 1e3, "% of limit": 100 * limit / own.median}
    if "eager" in figures:
        row["eager ms"] = figures["eager"].median * 1e3
    if "vllm" in figures:
        theirs = figures["vllm"]
        pairs = zip(own.values, theirs.values, strict=True)
        ratio = Figure(tuple(their / our for our, their in pairs))
        row |= {"vllm ms": theirs.median * 1e3, "vllm sentences/s": batch / theirs.median}
        row |= {"x vllm": ratio.median, "spread": ratio.spread}
    report.add(**row)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Serving: time to first token under load, and what the server adds to each token.

For each number of streams: all ask at once with a prompt of 64 tokens, and again one request asks
while the others are in the middle of their answers ("under load"). For comparison, the same prompts
run in an offline engine in a process of its own; the difference between the two wall times per step
is the server's overhead. Client, server and engine share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from benchmark.generation import prompts
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ROOT, ServerProcess, Streamed, speaking_folder, stream

PROMPT = 64
COLUMNS = (
    "streams",
    "first token ms p50",
    "p99",
    "under load ms p50",
    "spread",
    "served tokens/s",
    "offline tokens/s",
    "overhead us/token",
    "overhead ms/step",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", default="small")
    flags.add_argument("--tokens", type=int, default=64)
    flags.add_argument("--streams", type=int, action="append")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    arguments = flags.parse_args()
    folder = speaking_folder(arguments.shape)
    if arguments.offline:
        offline_loop(folder, arguments.threads)
        return
    report = Report(f"Serving a random model of shape {arguments.shape!r}", COLUMNS)
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    report.notes.append(
        f"{arguments.tokens} tokens per answer, prompts of {PROMPT}, {rounds} interleaved rounds. "
        "overhead: (served wall time - offline wall time) / tokens, and / steps."
    )
    with ServerProcess(folder, *server_flags(arguments.threads)) as server:
        offline = Offline(arguments)
        for count in arguments.streams or ([8] if arguments.quick else [1, 8, 32]):
            measure(report, server.url, offline, count, arguments.tokens, rounds)
        offline.close()
    report.print()
    report.write(arguments.json)


def server_flags(threads: int) -> list[str]:
    """The same engine settings on both sides; no prefix cache, as prompts return each round."""
    return ["--num-threads", str(threads), "--kv-cache-mem-mb", "512", "--reuse-cache", "off"]


def measure(
    report: Report, url: str, offline: Offline, count: int, tokens: int, rounds: int
) -> None:
    """One row: `count` streams, served and offline in turns."""
    prompt_ids = prompts(count, PROMPT)
    firsts: list[float] = []

    def served() -> float:
        began = time.perf_counter()
        answers = asyncio.run(all_at_once(url, prompt_ids, tokens))
        seconds = time.perf_counter() - began
        firsts.extend(answer.first for answer in answers)
        if any(answer.tokens != tokens for answer in answers):
            raise SystemExit("an answer was not whole")
        return seconds

    figures = interleave(
        {"served": served, "offline": lambda: offline.seconds(count, tokens)}, rounds
    )
    late = [asyncio.run(under_load(url, prompts(count + 1, PROMPT), tokens)) for _ in range(rounds)]
    difference = figures["served"].median - figures["offline"].median
    ordered = sorted(firsts[count:])  # without the warm-up
    report.add(
        **{
            "streams": count,
            "first token ms p50": 1e3 * statistics.median(ordered),
            "p99": 1e3 * ordered[int(0.99 * len(ordered))],
            "under load ms p50": 1e3 * statistics.median(late),
            "spread": (1e3 * min(late), 1e3 * max(late)),
            "served tokens/s": count * tokens / figures["served"].median,
            "offline tokens/s": count * tokens / figures["offline"].median,
            "overhead us/token": 1e6 * difference / (count * tokens),
            "overhead ms/step": 1e3 * difference / tokens,
        }
    )


async def all_at_once(url: str, prompt_ids: list[list[int]], tokens: int) -> list[Streamed]:
    """Every prompt in a stream of its own."""
    return await asyncio.gather(*(stream(url, prompt, tokens) for prompt in prompt_ids))


async def under_load(url: str, prompt_ids: list[list[int]], tokens: int) -> float:
    """Time to first token of one more request while the others are being answered."""
    *others, last = prompt_ids
    running = [asyncio.create_task(stream(url, prompt, tokens)) for prompt in others]
    began = time.perf_counter()
    probe = await stream(url, last, 1)
    await asyncio.sleep(max(0.0, probe.first - (time.perf_counter() - began)))
    late = await stream(url, last, 2)
    await asyncio.gather(*running)
    return late.first


class Offline:
    """The offline engine in a process of its own, so that the client's loop is not slowed by it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmark.serve_latency", "--offline"]
        command += ["--shape", arguments.shape, "--threads", str(arguments.threads)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, count: int, tokens: int) -> float:
        """Wall time of `count` prompts answered at once."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the offline engine has no pipes")
        self._process.stdin.write(json.dumps([count, tokens]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Shut down the engine and wait for its process."""
        self._process.communicate(timeout=60)


def offline_loop(folder: pathlib.Path, threads: int) -> None:
    """Answer lines of [streams, tokens] with seconds, until standard input ends."""
    from rtp_llm import LLM, SamplingParams

    settings = {"num_threads": threads, "kv_cache_mem_mb": 512, "reuse_cache": False}
    with LLM(folder, **settings) as llm:
        for line in sys.stdin:
            count, tokens = json.loads(line)
            params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            began = time.perf_counter()
            llm.generate(prompts(count, PROMPT), params, use_tqdm=False)
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()

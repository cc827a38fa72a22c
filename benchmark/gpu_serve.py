# SPDX-License-Identifier: Apache-2.0
"""Serving on a GPU: 256 streams of `rtp-llm serve` against the same requests offline.

Two workloads: the random requests of gpu_throughput, and many short steps (prompts of 128, answers
of 256 tokens). Offline is LLM.generate in this process; the streams are read by processes that
parse nothing. The overhead is what the streams take longer, from the first request to the last
byte.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmark.generation import prompts
from benchmark.gpu_engine import add_flags, given_settings, settings_for
from benchmark.gpu_requests import LONGEST, REQUESTS, generate, workload
from benchmark.processes.stream_client import Answer, Clients
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ServerProcess, processor_seconds, write_tokenizer
from rtp_llm import LLM
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device

PATH = "/v1/completions"
PROMPT, ANSWER = 128, 256
COLUMNS = (
    "workload",
    "streams",
    "offline tokens/s",
    "served tokens/s",
    "overhead %",
    "spread",
    "first event ms p50",
    "p99",
    "tokens an event",
    "HTTP us a token",
)

Work = tuple[list[list[int]], list[int]]  # prompts, and how many tokens each answer has


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.add_argument("--requests", type=int, default=REQUESTS)
    flags.add_argument("--longest", type=int, default=LONGEST)
    flags.add_argument("--clients", type=int, default=4)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    device = resolve_device()
    changes = make_changes(arguments)
    settings = settings_for(arguments.shape, **changes)
    write_tokenizer(settings.model, arguments.shape)
    report = Report(f"Serving on {device.description()}, shape {arguments.shape}", COLUMNS)
    print("starting the server and the offline engine ...", flush=True)
    fields = dataclasses.asdict(settings)
    with (
        ServerProcess(fields.pop("model"), *flags_of(settings)) as server,
        LLM(settings.model, **fields) as llm,
    ):
        llm.prepare()
        clients = Clients(server.url, arguments.clients)
        for name, work in workloads(arguments).items():
            print(f"{name} ...", flush=True)
            measure(report, name, work, (server, clients, llm), rounds)
        clients.close()
    report.notes.append(f"goal: overhead under 10%; {rounds} interleaved rounds")
    report.print()
    report.write(arguments.json)


def make_changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings of both engines, which share the GPU."""
    own = {
        "kv_cache_mem_mb": 40 * 1024,
        "max_seq_len": 4096,
        "max_running_requests": max(REQUESTS, arguments.requests),
    }
    return {**own, **given_settings(arguments)}


def flags_of(settings: Settings) -> list[str]:
    """Return the settings that differ from their defaults, as flags."""
    flags = []
    for field in dataclasses.fields(Settings):
        value = getattr(settings, field.name)
        if field.name != "model" and value != field.default:
            shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
            flags += ["--" + field.name.replace("_", "-"), shown]
    return flags


def workloads(arguments: argparse.Namespace) -> dict[str, Work]:
    """Return the requests of each workload, by name."""
    short = (prompts(arguments.requests, PROMPT), [ANSWER] * arguments.requests)
    return {
        "100-1024 in, out": workload(arguments.requests, arguments.longest),
        f"{PROMPT} in, {ANSWER} out": short,
    }


def measure(
    report: Report,
    name: str,
    work: Work,
    contenders: tuple[ServerProcess, Clients, LLM],
    rounds: int,
) -> None:
    """One row: served and offline in turns."""
    server, clients, llm = contenders
    prompt_ids, answers = work
    bodies = requests(prompt_ids, answers, llm.ready.vocab_size)
    seen: list[Answer] = []
    used: list[float] = []

    def served() -> float:
        before, began = processor_seconds(server.processes[0]), time.perf_counter()
        seen[:] = clients.ask(PATH, bodies)
        seconds = time.perf_counter() - began
        used.append(processor_seconds(server.processes[0]) - before)
        check(seen, sum(answers))
        return seconds

    figures = interleave({"served": served, "offline": lambda: generate(llm, *work)}, rounds)
    total, ours, plain = sum(answers), figures["served"], figures["offline"]
    firsts = sorted(answer.first - answer.began for answer in seen)
    report.add(
        **{
            "workload": name,
            "streams": len(bodies),
            "offline tokens/s": total / plain.median,
            "served tokens/s": total / ours.median,
            "overhead %": 100 * (ours.median / plain.median - 1),
            "spread": tuple(100 * (value / plain.median - 1) for value in ours.spread),
            "first event ms p50": 1e3 * statistics.median(firsts),
            "p99": 1e3 * firsts[int(0.99 * len(firsts))],
            "tokens an event": total / sum(answer.events for answer in seen),
            "HTTP us a token": 1e6 * statistics.median(used) / total,
        }
    )


def requests(prompt_ids: list[list[int]], answers: list[int], size: int) -> list[dict[str, Any]]:
    """Return the request body for each prompt."""
    common = {"temperature": 0.6, "ignore_eos": True, "stream": True}
    return [
        {
            "prompt": [token % size for token in prompt],
            "max_tokens": count,
            "stream_options": {"include_usage": True},
            **common,
        }
        for prompt, count in zip(prompt_ids, answers, strict=True)
    ]


def check(answers: Sequence[Answer], tokens: int) -> None:
    """Check that every stream ended normally with all of its tokens."""
    broken = [answer for answer in answers if not answer.whole]
    if broken or sum(answer.tokens for answer in answers) != tokens:
        raise SystemExit(f"{len(broken)} answers were not whole: {(broken or answers)[0]}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Sending: tokens/s that the HTTP process can stream from an engine without a model.

Two figures: with the engine at its given pace, how much longer the streams take than the engine
(their tokens come in fewer and longer events once the process falls behind), and the time of the
HTTP process for each token; its inverse is what one process could send with a core of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from benchmark.generation import prompts
from benchmark.processes.emitting_engine import RATE_VARIABLE
from benchmark.processes.stream_client import Answer, Clients
from benchmark.random_model import config_folder
from benchmark.report import Report, parser
from benchmark.server_process import (
    TICK_SECONDS,
    ServerProcess,
    processor_seconds,
    write_tokenizer,
)

PROMPT = 128
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
COLUMNS = (
    "endpoint",
    "streams",
    "engine tokens/s",
    "served tokens/s",
    "over the engine %",
    "tokens an event",
    "first event ms p50",
    "HTTP us a token",
    "one core: tokens/s",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--streams", type=int, action="append")
    flags.add_argument("--tokens", type=int, default=512)
    flags.add_argument("--steps-per-second", type=float, default=400.0)
    flags.add_argument("--clients", type=int, default=2)
    flags.add_argument("--endpoint", choices=PATHS, action="append")
    arguments = flags.parse_args()
    folder = config_folder("qwen3-0.6b")
    write_tokenizer(folder, "qwen3-0.6b")
    report = Report("Streams from an engine without a model", COLUMNS)
    os.environ[RATE_VARIABLE] = str(arguments.steps_per_second)
    command = [sys.executable, "-m", "benchmark.processes.emitting_server"]
    with ServerProcess(folder, "--load-format", "dummy", command=command) as server:
        clients = Clients(server.url, arguments.clients)
        for endpoint in arguments.endpoint or ["completions"]:
            for streams in arguments.streams or ([64] if arguments.quick else [64, 256]):
                measure(report, server, clients, endpoint, streams, arguments)
        clients.close()
    report.notes.append(
        f"{arguments.tokens} tokens a stream, {arguments.steps_per_second:g} steps/s"
    )
    report.print()
    report.write(arguments.json)


def measure(
    report: Report,
    server: ServerProcess,
    clients: Clients,
    endpoint: str,
    streams: int,
    arguments: argparse.Namespace,
) -> None:
    """Add one row to the report."""
    bodies = [body(endpoint, arguments.tokens, number) for number in range(streams)]
    clients.ask(PATHS[endpoint], bodies[:8])
    before = processor_seconds(server.processes[0])
    answers = clients.ask(PATHS[endpoint], bodies)
    used = max(TICK_SECONDS, processor_seconds(server.processes[0]) - before)
    total = streams * arguments.tokens
    if not all(answer.whole and answer.tokens == arguments.tokens for answer in answers):
        raise SystemExit(f"an answer was not whole: {answers[0]}")
    seconds = max(a.last for a in answers) - min(a.began for a in answers)
    rate = arguments.steps_per_second * streams
    report.add(
        **{
            "endpoint": endpoint,
            "streams": streams,
            "engine tokens/s": rate,
            "served tokens/s": total / seconds,
            "over the engine %": 100 * (seconds * rate / total - 1),
            "tokens an event": total / sum(answer.events for answer in answers),
            "first event ms p50": 1e3 * _median_first(answers),
            "HTTP us a token": 1e6 * used / total,
            "one core: tokens/s": total / used,
        }
    )


def body(endpoint: str, tokens: int, number: int) -> dict[str, Any]:
    """Return a request whose answer has this many tokens and reports its usage."""
    content: dict[str, Any] = {"max_tokens": tokens, "stream": True, "ignore_eos": True}
    content |= {"temperature": 0.6, "stream_options": {"include_usage": True}}
    if endpoint == "completions":
        return content | {"prompt": prompts(1, PROMPT)[0]}
    return content | {"messages": [{"role": "user", "content": f"Count to {number}, please."}]}


def _median_first(answers: list[Answer]) -> float:
    return statistics.median(answer.first - answer.began for answer in answers)


if __name__ == "__main__":
    main()

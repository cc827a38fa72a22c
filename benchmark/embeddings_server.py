# SPDX-License-Identifier: Apache-2.0
"""Embeddings over HTTP: the share of the offline rate, and each process's time a vector.

A single text a request, base64, as many requests at a time as there are streams. LLM.embed gets as
many texts at a time. Both take turns. The limit follows from the processor time of a vector: all
processes together have no more than the cores, and the engine no more than its --threads; what is
left of fewer threads than cores is for the HTTP process and the client. The time of the HTTP
process is measured once more before an engine without a model, where it waits for nobody.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import os
import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmark.embeddings import encoder_folder
from benchmark.encoder_shapes import ENCODER_SHAPES, embedder_folder
from benchmark.processes import pooling_engine
from benchmark.processes.emitting_server import MODULE_VARIABLE
from benchmark.processes.pooling_engine import SIZE_VARIABLE
from benchmark.processes.request_client import RequestClient
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ServerProcess, processor_seconds
from rtp_llm import LLM

COLUMNS = (
    "tokens",
    "threads",
    "offline/s",
    "server/s",
    "share %",
    "limit %",
    "offline us",
    "engine us",
    "HTTP us",
    "client us",
    "HTTP us, no model",
)
TEXTS = 512
_PATH = "/v1/embeddings"
_PROCESSES, _BARE = ("HTTP", "engine", "client"), ", no model"
_EMITTING = [sys.executable, "-m", "benchmark.processes.emitting_server"]


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.seconds, arguments.rounds = 0.3, 1
    shape = "tiny" if arguments.quick else arguments.shape
    on_cpu = arguments.device == "cpu"
    folder = arguments.model or (encoder_folder if on_cpu else embedder_folder)(shape)
    torch.set_num_threads(arguments.threads)
    report = Report("Embeddings over HTTP, and LLM.embed", COLUMNS)
    common = ["--served-model-name", "m", "--task", "embed"]
    settings: dict[str, Any] = {
        "num_threads": arguments.threads,
        "device_type": arguments.device,
        "dtype": "float32" if on_cpu else "bfloat16",
        "load_format": "safetensors" if on_cpu or arguments.model else "dummy",
    }
    given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    with (
        LLM(str(folder), task="embed", **settings) as engine,
        ServerProcess(folder, *common, *given) as server,
        _without_model(folder, engine.ready.vector_size, common) as bare,
    ):
        for words in arguments.words or ([8] if arguments.quick else [16, 64]):
            texts = _texts(engine, words)
            clients = [RequestClient(each.url) for each in (server, bare)]
            servers = [*zip((server, bare), clients, strict=True)]
            _measure(report, arguments, engine, texts, servers)
            for each in clients:
                each.close()
    report.notes.append(
        f"{folder.name}, {arguments.streams} streams, {len(os.sched_getaffinity(0))} cores; us: "
        "processor time of a vector, whose least round counts; rates: the median round"
    )
    report.print()
    report.write(arguments.json)


def _arguments() -> argparse.Namespace:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", type=pathlib.Path, help="a folder instead of a shape")
    flags.add_argument("--shape", choices=list(ENCODER_SHAPES), default="minilm")
    flags.add_argument("--device", default="cpu", help="another one has bfloat16 dummy weights")
    flags.add_argument("--words", type=int, action="append", help="of a text")
    flags.add_argument("--streams", type=int, default=64)
    flags.add_argument("--seconds", type=float, default=3.0, help="of a round")
    flags.add_argument("--rounds", type=int, default=5)
    return flags.parse_args()


def _without_model(folder: pathlib.Path, size: int, flags: Sequence[str]) -> ServerProcess:
    os.environ |= {SIZE_VARIABLE: str(size), MODULE_VARIABLE: pooling_engine.__name__}
    return ServerProcess(folder, *flags, command=_EMITTING)


class _Contest:
    """Rounds of one length of texts; ``times``: processor seconds of a vector in each round."""

    def __init__(self, arguments: argparse.Namespace, engine: LLM, texts: list[str]) -> None:
        self._streams, self._seconds = arguments.streams, arguments.seconds
        self._engine = engine
        parts = (texts[at : at + self._streams] for at in range(0, TEXTS, self._streams))
        self._batches = itertools.cycle([*parts])
        self._bodies = [
            {"model": "m", "input": each, "encoding_format": "base64"} for each in texts
        ]
        self.times: dict[str, list[float]] = collections.defaultdict(list)

    def offline(self) -> float:
        """Vectors a second of LLM.embed."""
        began, used, count = time.monotonic(), time.process_time(), 0
        while (seconds := time.monotonic() - began) < self._seconds:
            count += len(self._engine.embed(next(self._batches), use_tqdm=False))
        self.times["offline"].append((time.process_time() - used) / count)
        return count / seconds

    def over_http(self, server: ServerProcess, client: RequestClient, suffix: str) -> float:
        """Vectors a second of a server."""
        processes = server.processes[:2]
        before = [processor_seconds(each) for each in processes]
        seen = client.ask(_PATH, self._bodies, self._streams, self._seconds)
        used = [processor_seconds(each) - was for each, was in zip(processes, before, strict=True)]
        for name, seconds in zip(_PROCESSES, (*used, seen.processor_seconds), strict=True):
            self.times[name + suffix].append(seconds / max(1, seen.answers))
        return seen.answers / seen.seconds


def _measure(
    report: Report,
    arguments: argparse.Namespace,
    engine: LLM,
    texts: list[str],
    servers: Sequence[tuple[ServerProcess, RequestClient]],
) -> None:
    """Add a row."""
    contest = _Contest(arguments, engine, texts)
    contenders = {
        "offline": contest.offline,
        "server": functools.partial(contest.over_http, *servers[0], ""),
        "bare": functools.partial(contest.over_http, *servers[1], _BARE),
    }
    rates = interleave(contenders, arguments.rounds)
    us = {name: 1e6 * min(each) for name, each in contest.times.items()}
    share = rates["server"].median / rates["offline"].median
    cores, threads = len(os.sched_getaffinity(0)), arguments.threads
    engine_alone, together = threads / us["engine"], cores / sum(us[name] for name in _PROCESSES)
    limit = min(engine_alone, together) / (threads / us["offline"])
    tokens = sum(len(engine.tokenizer.encode(text)) for text in texts) / TEXTS
    report.add(
        **{"tokens": tokens, "threads": threads},
        **{"offline/s": rates["offline"].median, "server/s": rates["server"].median},
        **{"share %": 100 * share, "limit %": 100 * min(1.0, limit)},
        **{f"{name} us": us[name] for name in ("offline", *_PROCESSES)},
        **{"HTTP us, no model": us["HTTP" + _BARE]},
    )


def _texts(engine: LLM, words: int) -> list[str]:
    """Texts of so many words, each of a token or a few, that the tokenizer knows."""
    chosen = random.Random(0)
    tokenizer = engine.tokenizer
    known = [tokenizer.decode([each]).strip() for each in range(999, tokenizer.vocab_size, 7)]
    plain = [each for each in known if each.isalnum()] or ["word"]
    return [" ".join(chosen.choices(plain, k=words)) for _ in range(TEXTS)]


if __name__ == "__main__":
    main()

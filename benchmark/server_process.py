# SPDX-License-Identifier: Apache-2.0
"""A server in processes of its own, as a user starts it, and a client."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from benchmark.random_model import SHAPES, model_folder
from rtp_llm.client.openai import COMPLETIONS, OpenAIClient, ServerError, api_base

ROOT = pathlib.Path(__file__).parents[1]
SERVE = [sys.executable, "-m", "rtp_llm.cli", "serve"]
_QUIET = ["--port", "0", "--access-log", "off"]
_START = re.compile(r"\bstart: (.*)")
_PHASE = re.compile(r"([\w -]+?) ([\d.]+) s")
_SPACES = ("", "Ġ")
_CHAT = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


class ServerProcess:
    """`rtp-llm serve FOLDER --port 0 FLAGS`; a context manager that stops it.

    `command`: another program that takes the same arguments.
    """

    def __init__(
        self, folder: str | pathlib.Path, *flags: str, command: Sequence[str] = ()
    ) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [*(command or SERVE), str(folder), *_QUIET, *flags],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.phases: dict[str, float] = {}
        # Its log is read continuously, so that the server never blocks on it.
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.url = ""
        self.ready_seconds = 0.0
        self.output: list[str] = []

    def __enter__(self) -> ServerProcess:
        for line in self._process.stdout or ():
            self.output.append(line)
            if "is ready: " in line:
                self.ready_seconds = time.perf_counter() - self.began
                self.url = line.split()[-1]
            if "curl " in line:  # the last line of the greeting
                return self
        raise SystemExit(f"the server did not start (exit code {self._process.wait()})")

    def _read_log(self) -> None:
        """Keep the phases of the engine's startup; print lines above level info."""
        for line in self._process.stderr or ():
            if started := _START.search(line):
                self.phases = {
                    name.strip(): float(seconds) for name, seconds in _PHASE.findall(started[1])
                }
            elif " INFO " not in line:
                sys.stderr.write(line)

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it is busy with what it was asked
            self._process.wait()
        self._reader.join()

    @property
    def processes(self) -> list[int]:
        """The HTTP process and the engine process."""
        pid = self._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]


# Shorter times are invisible to processor_seconds.
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def processor_seconds(process: int) -> float:
    """Time that a process has had a core, in user mode and in the kernel."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_SECONDS


@dataclass(frozen=True)
class Streamed:
    """Arrival times of the chunks of one streamed answer, in seconds from the request."""

    times: list[float]
    tokens: int

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def last(self) -> float:
        return self.times[-1]


async def stream(
    url: str, prompt: list[int] | str, max_tokens: int, key: str | None = None
) -> Streamed:
    """Stream one completion over a connection of its own.

    ``key``: the API key to send.
    """
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}
    began = time.perf_counter()
    times, tokens = [], 0
    try:
        with contextlib.closing(OpenAIClient(api_base(url), key)) as client:
            async for delta in client.stream(COMPLETIONS, body):
                if delta.usage is None:
                    times.append(time.perf_counter() - began)
                else:
                    tokens = delta.usage.completion_tokens
    except ServerError as error:
        raise SystemExit(f"the server answered {error}") from error
    return Streamed(times, tokens)


def speaking_folder(shape: str) -> pathlib.Path:
    """A random model of benchmark/random_model.py with a tokenizer, so that it can be served."""
    folder = model_folder(shape)
    write_tokenizer(folder, shape)
    return folder


def write_tokenizer(folder: str | pathlib.Path, shape: str) -> None:
    """A tokenizer with a word for every id of the shape, unless the folder has one."""
    file = pathlib.Path(folder) / "tokenizer.json"
    (file.parent / "chat_template.jinja").write_text(_CHAT)
    if file.exists():
        return
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = SHAPES[shape]["vocab_size"]
    words = [f"{_SPACES[i % 2]}w{i}" for i in range(size - len(alphabet))]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *words])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(file))

# SPDX-License-Identifier: Apache-2.0
"""An engine process without a model, for tests: the first prompt token says what it does.

A prompt [token, ...] is answered with token, token + 1, ... up to max_tokens, one a step, except
for the commands below. It takes no more steps than ``allowed_steps`` says.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rtp_llm.config.settings import Settings
from rtp_llm.engine.columns import step_columns
from rtp_llm.engine.messages import (
    FINISH_LENGTH,
    INDEX_BITS,
    AddRequest,
    EngineReady,
    EngineStats,
    RequestError,
    StepOutput,
)
from rtp_llm.engine.process.main import main
from rtp_llm.engine.serving import Serving
from rtp_llm.testing.engine.allowed_steps import allowed_steps
from rtp_llm.worker.worker import StepOutputs

# A step with SLEEP in it ends when it is allowed, and never where no test says how many are.
SLEEP, RAISE, KILL, REFUSE, QUEUE_FULL, STOP_BEATING = 9001, 9002, 9003, 9004, 9005, 9006
STEP_SECONDS = 0.002
_LOOK_SECONDS = 0.005


class ScriptedEngine(Serving):
    """What EngineService needs of an engine."""

    def __init__(self) -> None:
        self.running: dict[tuple[int, int], list[int]] = {}
        self.steps = 0
        self.began: float | None = None
        self.idle_parts = 3

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    @property
    def has_idle_work(self) -> bool:
        return self.idle_parts > 0

    def work_idle(self) -> None:
        self.idle_parts = max(0, self.idle_parts - 1)

    def add(self, request: AddRequest) -> None:
        first = request.prompt_token_ids[0]
        if first == REFUSE:
            raise RequestError("invalid", "refused by the script")
        if first == QUEUE_FULL:
            raise RequestError("queue_full", "full by the script")
        for index in range(request.params.n):
            self.running[request.request_id, index] = [first, request.sampling.max_tokens or 8]

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        for each in sequences:
            self.running.pop(each, None)

    def step(self) -> list[StepOutput]:
        if not self.running:
            return []
        first = [tokens[0] for tokens in self.running.values()]
        if SLEEP not in first and self.steps >= allowed_steps():
            time.sleep(_LOOK_SECONDS)  # and hears then what the client says
            return []
        self.began = time.monotonic()
        if RAISE in first:
            raise ZeroDivisionError("by the script")
        if KILL in first:
            os.abort()
        if STOP_BEATING in first:
            os.kill(os.getpid(), 19)  # SIGSTOP: still there, but silent
        time.sleep(STEP_SECONDS)
        while SLEEP in first and not self.steps < allowed_steps() < math.inf:
            time.sleep(_LOOK_SECONDS)
        self.began = None
        self.steps += 1
        return [self._output()]

    def _output(self) -> StepOutput:
        keys = list(self.running)
        rows = [self.running[key] for key in keys]
        ids = np.array([request << INDEX_BITS | index for request, index in keys], np.int64)
        result: Any = SimpleNamespace(
            ids=ids,
            tokens=np.array([[row[0]] for row in rows], np.int32),
            num_tokens=np.ones(len(rows), np.int32),
            finish=np.array([FINISH_LENGTH * (row[1] == 1) for row in rows], np.uint8),
            cached_tokens=np.zeros(len(rows), np.int32),
            queue_seconds=np.zeros(len(rows), np.float32),
        )
        for key, row in zip(keys, rows, strict=True):
            row[0], row[1] = row[0] + 1, row[1] - 1
            if not row[1]:
                del self.running[key]
        return step_columns(result, StepOutputs(len(rows), len(rows)), STEP_SECONDS)

    def stats(self) -> EngineStats:
        age = 0.0 if self.began is None else time.monotonic() - self.began
        return EngineStats(running=len(self.running), steps=self.steps, step_age=age)


def build(settings: Settings, *_: Any) -> Any:
    """A folder named "missing" cannot be loaded; ranks of "lockstep" live and die together."""
    if settings.model == "missing":
        raise ValueError("no such model: missing")
    if settings.model == "crash":
        os.abort()
    ready = EngineReady(
        max_model_len=1000,
        vocab_size=10000,
        eos_token_ids=(),
        num_blocks=64,
        block_size=16,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        dtype="float32",
        quantization="none",
        device="cpu",
        architecture="Scripted",
        weight_bytes=0,
        kv_cache_bytes=0,
        num_threads=1,
        start_seconds=0.0,
        lockstep=settings.model == "lockstep",
    )
    return SimpleNamespace(engine=ScriptedEngine(), ready=ready, step_group=None, profiler=None)


if __name__ == "__main__":
    sys.exit(main(build))

# SPDX-License-Identifier: Apache-2.0
"""An engine process without a model: a token for every sequence at the requested pace.

It stands in for a GPU that is quicker than this machine, to see what the HTTP process can send.
EMITTING_STEPS_PER_SECOND says how many steps; 0: as many as there can be.
"""

from __future__ import annotations

import os
import sys
import time
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
    StepOutput,
)
from rtp_llm.engine.process.main import main
from rtp_llm.engine.serving import Serving
from rtp_llm.worker.worker import StepOutputs

RATE_VARIABLE = "EMITTING_STEPS_PER_SECOND"
VOCABULARY = 30000


class EmittingEngine(Serving):
    """The part of an engine that EngineService needs."""

    def __init__(self, rate: float) -> None:
        self._seconds = 1 / rate if rate else 0.0
        self._due = 0.0
        self._ids = np.empty(0, np.int64)
        self._left = np.empty(0, np.int64)
        self._random = np.random.default_rng(0)
        self._steps = 0

    @property
    def has_work(self) -> bool:
        return bool(len(self._ids))

    @property
    def has_idle_work(self) -> bool:
        return False

    def work_idle(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def add(self, request: AddRequest) -> None:
        first = request.request_id << INDEX_BITS
        ids = np.arange(first, first + request.params.n)
        self._ids = np.concatenate([self._ids, ids])
        lengths = np.full(len(ids), request.params.max_tokens or 16)
        self._left = np.concatenate([self._left, lengths])

    def abort(self, sequences: list[tuple[int, int]]) -> None:
        gone = [request << INDEX_BITS | index for request, index in sequences]
        self._keep(~np.isin(self._ids, gone))

    def _keep(self, wanted: Any) -> None:
        self._ids, self._left = self._ids[wanted], self._left[wanted]

    def step(self) -> list[StepOutput]:
        if not self.has_work:
            return []
        now = time.monotonic()
        self._due = max(self._due, now - self._seconds) + self._seconds
        if self._due > now:
            time.sleep(self._due - now)
        self._left -= 1
        ended = self._left == 0
        rows = len(self._ids)
        result: Any = SimpleNamespace(
            ids=self._ids,
            tokens=self._random.integers(1000, VOCABULARY, (rows, 1), np.int32),
            num_tokens=np.ones(rows, np.int32),
            finish=(FINISH_LENGTH * ended).astype(np.uint8),
            cached_tokens=np.zeros(rows, np.int32),
            queue_seconds=np.zeros(rows, np.float32),
        )
        self._keep(~ended)
        self._steps += 1
        return [step_columns(result, StepOutputs(rows, rows), seconds=0.0)]

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._ids), steps=self._steps)


def build(settings: Settings, *_: Any) -> Any:
    """An engine that is ready at once."""
    ready = EngineReady(
        max_model_len=65536,
        vocab_size=VOCABULARY,
        eos_token_ids=(),
        num_blocks=2,
        block_size=16,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        dtype="none",
        quantization="none",
        device="none",
        architecture="Emitting",
        weight_bytes=0,
        kv_cache_bytes=0,
        num_threads=1,
        start_seconds=0.0,
    )
    engine = EmittingEngine(float(os.environ.get(RATE_VARIABLE, "0")))
    return SimpleNamespace(engine=engine, ready=ready, step_group=None, profiler=None)


if __name__ == "__main__":
    sys.exit(main(build))

# SPDX-License-Identifier: Apache-2.0
"""An engine process without a model, whose steps give every waiting prompt a vector of zeros.

What the HTTP process spends on a vector is then all that is left. VECTOR_SIZE: numbers of a vector.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from benchmark.processes import emitting_engine
from rtp_llm.config.settings import Settings
from rtp_llm.engine.columns import step_columns
from rtp_llm.engine.messages import FINISH_PROMPT, INDEX_BITS, AddRequest, StepOutput
from rtp_llm.engine.process.main import main
from rtp_llm.worker.heads.pool import Pooled
from rtp_llm.worker.worker import StepOutputs

SIZE_VARIABLE = "VECTOR_SIZE"


class PoolingEngine(emitting_engine.EmittingEngine):
    """The same, for prompts that are pooled."""

    def __init__(self, size: int) -> None:
        super().__init__(0.0)
        self._values = np.zeros((1, size), np.float32)
        self._waiting: list[int] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, request: AddRequest) -> None:
        self._waiting.append(request.request_id << INDEX_BITS)

    def abort(self, sequences: list[tuple[int, int]]) -> None:
        gone = {request << INDEX_BITS for request, _ in sequences}
        self._waiting = [each for each in self._waiting if each not in gone]

    def step(self) -> list[StepOutput]:
        ended, self._waiting = self._waiting, []
        if not ended:
            return []
        rows = len(ended)
        zeros = np.zeros(rows, np.int32)
        result: Any = SimpleNamespace(
            ids=np.array(ended, np.int64),
            tokens=np.full((rows, 1), -1, np.int32),
            num_tokens=zeros,
            finish=np.full(rows, FINISH_PROMPT, np.uint8),
            cached_tokens=zeros,
            queue_seconds=np.zeros(rows, np.float32),
        )
        pooled = [Pooled(sequence, self._values) for sequence in ended]
        return [step_columns(result, StepOutputs(rows, rows, prompts=pooled), seconds=0.0)]


def build(settings: Settings, *_: Any) -> Any:
    """An engine that is ready at once."""
    size = int(os.environ[SIZE_VARIABLE])
    ready = emitting_engine.build(settings).ready
    known = msgspec.structs.replace(ready, tasks=("embed",), vector_size=size)
    return SimpleNamespace(engine=PoolingEngine(size), ready=known, step_group=None, profiler=None)


if __name__ == "__main__":
    sys.exit(main(build))

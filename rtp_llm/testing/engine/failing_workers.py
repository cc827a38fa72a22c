# SPDX-License-Identifier: Apache-2.0
"""Workers of ranks that fail; a module of its own, since each rank imports it."""

from __future__ import annotations

import os
from typing import Any

import torch

from rtp_llm.engine.start.rank_worker import make_worker
from rtp_llm.worker.local_worker import LocalWorker
from rtp_llm.worker.ranks.later_stage import LaterStageWorker
from rtp_llm.worker.worker import Worker

# Factories, as Start names them.
OUT_OF_MEMORY = f"{__name__}:running_out_of_memory"
NO_WORKER = f"{__name__}:no_worker"
STEPS = "RTP_LLM_TEST_LOST_STEP"  # how many there is memory for


def running_out_of_memory(*arguments: Any) -> Worker:
    """A rank that has no memory for one of its steps."""
    worker = make_worker(*arguments)
    assert isinstance(worker, LocalWorker | LaterStageWorker)
    forward, left = worker.runner.forward, [int(os.environ[STEPS])]

    def fail(*given: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("a rank's memory is full")
        return forward(*given)

    worker.runner.forward = fail  # type: ignore[assignment,method-assign]
    return worker


def no_worker(*arguments: Any) -> Worker:
    """A rank that cannot start."""
    raise ValueError("this rank cannot be")

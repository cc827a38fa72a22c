# SPDX-License-Identifier: Apache-2.0
"""Workers of ranks that capture graphs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm.engine.start.rank_worker import make_worker
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.worker.graphs.step_graphs import Captured, StepGraphs
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.worker import Worker

IN_A_RANK = f"{__name__}:{{}}"  # the factory of such a name


def capturing_worker(*arguments: Any) -> Worker:
    """What a rank is made of, where the CPU has graphs."""
    capture_on_cpu(pytest.MonkeyPatch())  # for good: the process is the rank's
    return make_worker(*arguments)


def short_of_memory_worker(*arguments: Any) -> Worker:
    """The same on a rank that has no memory for the second graph."""
    patch = pytest.MonkeyPatch()
    capture_on_cpu(patch)
    capture = StepGraphs._capture

    def fail(self: StepGraphs, size: GraphSize) -> Captured:
        made = capture(self, size)
        if self._captured:
            raise torch.OutOfMemoryError("no memory on this rank")
        return made

    patch.setattr(StepGraphs, "_capture", fail)
    return make_worker(*arguments)

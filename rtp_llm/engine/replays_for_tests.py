"""Stands in for graphs on a device that has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine import build
from rtp_llm.worker.graphs.capture_sizes import GraphSize
from rtp_llm.worker.graphs.inputs import GraphInputs
from rtp_llm.worker.graphs.step_graphs import Captured, StepGraphs
from rtp_llm.worker.plan import StepPlan


class Replays:
    """Instead of graphs: every step runs on the arrays that stay in place, in one size."""

    def __init__(self, layers: Callable[..., Tensor], inputs: GraphInputs, size: GraphSize) -> None:
        self.layers, self.inputs, self.size = layers, inputs, size
        self.count = 0

    def replay(self, batch: StepPlan) -> Tensor | None:
        if not self.size.holds(batch.num_tokens, batch.num_seqs, batch.max_seqlen_q):
            return None
        self.count += 1
        self.inputs.write(batch, self.size)
        return self.layers(self.inputs.batch(self.size))[: batch.num_tokens]


class _Again:
    """A graph that runs its step again, on the same memory."""

    pool = None

    def __init__(self, step: Callable[[], Tensor], counts: Counter[GraphSize], size: GraphSize):
        self._step, self._counts, self._size = step, counts, size
        self.hidden = step()

    def capture(self, stream: Any = None) -> Any:
        raise AssertionError("it is captured")

    def replay(self) -> None:
        self._counts[self._size] += 1
        with torch.inference_mode():
            self.hidden.copy_(self._step())


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Counter[GraphSize]:
    """Let engines on the CPU capture their steps, as they would on a GPU; what is replayed."""
    counts: Counter[GraphSize] = Counter()

    def capture(self: StepGraphs, size: GraphSize) -> Captured:
        self._inputs.clear()
        batch = self._inputs.batch(size)
        graph = _Again(lambda: self._step(batch), counts, size)
        return Captured(graph, graph.hidden)

    allowed = {key: why for key, why in CpuDevice.refused.items() if key != "graph_capture"}
    monkeypatch.setattr(CpuDevice, "refused", allowed)
    monkeypatch.setattr(build, "missing_operators", lambda device: [])
    monkeypatch.setattr(StepGraphs, "_capture", capture)
    return counts

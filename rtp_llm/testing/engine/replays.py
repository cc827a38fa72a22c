# SPDX-License-Identifier: Apache-2.0
"""Stands in for graphs on a device that has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.start import build_worker
from rtp_llm.worker.graphs.step_graphs import Captured, StepGraphs
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.plan.step_plan import StepPlan


class Replays:
    """Instead of graphs: every step runs on the arrays that stay in place, in one size."""

    def __init__(self, layers: Callable[..., Tensor], inputs: GraphInputs, size: GraphSize) -> None:
        self.layers, self.inputs, self.size = layers, inputs, size
        self.count = 0

    def begin(self, plan: StepPlan) -> Replays | None:
        if not self.size.holds(plan.num_tokens, plan.num_seqs, plan.max_seqlen_q):
            return None
        self.inputs.write(plan, self.size)
        return self

    def replay(self, tokens: int) -> Tensor:
        self.count += 1
        return self.layers(self.inputs.batch(self.size))[:tokens]

    def batch(self, plan: StepPlan) -> ForwardBatch:
        return self.inputs.batch_of(plan)


class _Again:
    """A graph that runs a part of its step again, on the same memory."""

    pool = None

    def __init__(self, run: Callable[[], object], counts: Counter[GraphSize], size: GraphSize):
        self._run, self._counts, self._size = run, counts, size

    def capture(self, stream: Any = None) -> Any:
        raise AssertionError("it is captured")

    def replay(self) -> None:
        self._counts[self._size] += 1
        with torch.inference_mode():
            self._run()

    def release(self) -> None:
        raise AssertionError("nobody ends")


def capture_on_cpu(
    monkeypatch: pytest.MonkeyPatch, extended: Counter[GraphSize] | None = None
) -> Counter[GraphSize]:
    """Let engines on the CPU capture their steps as they would on a GPU; returns how often each
    graph is replayed.

    ``extended`` counts the graphs that are replayed after sampling.
    """
    counts: Counter[GraphSize] = Counter()
    further = Counter() if extended is None else extended

    def capture(self: StepGraphs, size: GraphSize) -> Captured:
        self._inputs.clear()
        hidden = self._run(size)
        graph = _Again(lambda: hidden.copy_(self._run(size)), counts, size)
        drafts = self._is_drafting(size)
        if not self._is_extending(size):
            return Captured(graph, hidden, drafts)
        self._extend(size, hidden)
        extend = _Again(lambda: self._extend(size, hidden), further, size)
        return Captured(graph, hidden, drafts, extend)

    allowed = {key: why for key, why in CpuDevice.refused.items() if key != "graph_capture"}
    monkeypatch.setattr(CpuDevice, "refused", allowed)
    monkeypatch.setattr(build_worker, "missing_operators", lambda device: [])
    monkeypatch.setattr(StepGraphs, "_capture", capture)
    return counts

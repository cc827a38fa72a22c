"""Stands in for graphs on a device that has none."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rtp_llm.worker.graphs.capture_sizes import GraphSize
from rtp_llm.worker.graphs.inputs import GraphInputs
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

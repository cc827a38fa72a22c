# SPDX-License-Identifier: Apache-2.0
"""The worker of a pipeline stage after the first: it runs layers and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import StepPlan
from rtp_llm.worker.ranks.returned_rows import ReturnedRows
from rtp_llm.worker.worker import StepHandle, Worker

if TYPE_CHECKING:
    from rtp_llm.distributed.pipeline import Pipeline
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.model_runner import ModelRunner


class LaterStageWorker(Worker):
    """Receives hidden states from the previous stage and sends its own to the next one; the last
    stage sends the requested rows back to the first."""

    def __init__(self, runner: ModelRunner, pipeline: Pipeline) -> None:
        self.runner = runner
        self._pipeline, self._returned = pipeline, ReturnedRows()

    @property
    def overlaps(self) -> bool:
        return False

    def add(self, sequences: NewSequences) -> None:
        self._returned.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        """Their prompts are computed: nothing of them is known here."""

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        self._returned.end(ids)

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        begun = self.runner.begin(plan)
        states = self.runner.model.stage_input(plan.num_tokens)
        assert states is not None
        states = self._pipeline.receive(states).wait()
        hidden = stable(self.runner.forward(begun, states), begun)
        if not self._pipeline.is_last:
            self._pipeline.send(hidden)
            return None
        rows = self._returned.of(plan)
        if rows is not None:
            hidden = hidden.index_select(0, self.runner.device.upload(rows))
        if len(hidden):
            self._pipeline.send(hidden)
        return None

    @property
    def has_idle_work(self) -> bool:
        return self.runner.has_idle_work

    def work_idle(self) -> None:
        self.runner.work_idle()


def stable(hidden: Tensor, step: DeviceStep) -> Tensor:
    """The result of a step, in memory that the next step does not overwrite."""
    return hidden if step.captured is None else hidden.clone()

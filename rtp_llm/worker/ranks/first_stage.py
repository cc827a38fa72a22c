# SPDX-License-Identifier: Apache-2.0
"""The worker of the first stage of a pipeline: the first layers, and all heads.

The last stage sends back the hidden states that tokens are sampled from, not the tokens. So
logits, masks, penalties and scores are where requests and embedding are, a tied embedding is there
once, and the tokens are where the next step needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.local_worker import LocalStep, LocalWorker
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import HeadPlan, StepPlan
from rtp_llm.worker.ranks.later_stage import stable
from rtp_llm.worker.ranks.returned_rows import ReturnedRows
from rtp_llm.worker.worker import StepHandle, StepOutputs

if TYPE_CHECKING:
    from rtp_llm.distributed.pipeline import Pipeline, Transfer
    from rtp_llm.worker.device_step import DeviceStep


class FirstStageWorker(LocalWorker):
    """Executes as many steps as ``pipeline`` has stages before it samples the first of them."""

    def __init__(self, *args: Any, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pipeline, self._returned = pipeline, ReturnedRows()

    @property
    def in_flight(self) -> int:
        return self._pipeline.stages

    def add(self, sequences: NewSequences) -> None:
        super().add(sequences)
        self._returned.add(sequences)

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        ids = list(ids)
        super().end(ids, aborted=aborted)
        self._returned.end(ids)

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        begun = self.runner.begin(plan)
        hidden = stable(self.runner.forward(begun), begun)
        self._pipeline.send(hidden)
        rows = self._returned.of(plan)
        # Received at once, so that the last stage never waits for the next computation here.
        count = plan.num_tokens if rows is None else len(rows)
        states = None
        if count:
            states = self._pipeline.receive(hidden.new_empty(count, hidden.shape[1]))
        return _FirstStageStep(self, begun, HeadPlan.copied(plan), states, whole=rows is None)


class _FirstStageStep:
    """``states`` are what comes back (None: nothing): of all tokens (``whole``), or of rows."""

    def __init__(
        self,
        worker: FirstStageWorker,
        begun: DeviceStep,
        plan: HeadPlan,
        states: Transfer | None,
        *,
        whole: bool,
    ) -> None:
        self._worker, self._begun, self._plan = worker, begun, plan
        self._states, self._whole = states, whole
        self._step: LocalStep | None = None

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        plan, worker = self._plan, self._worker
        if self._states is None:
            self._step = LocalStep(worker, plan, self._begun, None, None, {}, None)
            return
        states = self._states.wait()
        prompts: dict[str, Sequence[Any]] = {}
        if self._whole:
            prompts = worker.prompt_heads.submit(states, plan)
            logits = worker.runner.logits(states, plan.logit_rows) if plan.num_rows else None
        else:
            logits = worker.runner.model.compute_logits(states)
        self._step = LocalStep(worker, plan, self._begun, states, logits, prompts, None)
        self._step.submit_sampling(None)

    def read(self) -> StepOutputs:
        assert self._step is not None, "sampled before it is read"
        return self._step.read()

# SPDX-License-Identifier: Apache-2.0
"""The worker that computes in this process, on one device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.heads.prompt_heads import PromptHeads
from rtp_llm.worker.heads.sampling_flags import CONSTRAINED, LATE
from rtp_llm.worker.heads.verify import VerifyHandle, VerifyHead
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import HeadPlan, StepPlan
from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker

if TYPE_CHECKING:
    from rtp_llm.device import Download
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.grammar.row_masks import TokenMasks
    from rtp_llm.worker.heads.sample_handle import SampleHandle
    from rtp_llm.worker.heads.sampler import Sampler
    from rtp_llm.worker.kv_connector import WorkerConnector
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.speculative.device_drafter import DeviceDrafter


class LocalWorker(Worker):
    """The model's layers, then a head for each kind of output."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        *,
        overlaps: bool = False,
        drafter: DeviceDrafter | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        """``overlaps``: the runner and the sampler share tokens that the host does not know yet.
        ``drafter`` finds drafts for them. ``constraints`` mask logits; the engine lets them follow
        the tokens."""
        self.runner = runner
        self.sampler = sampler
        self.constraints = constraints
        self.drafter = drafter
        device_drafts, sampling = None, None
        if drafter is not None:
            device_drafts, sampling = runner.sampled, drafter.sampling
        self.verifier = VerifyHead(sampler, device_drafts, sampling)
        self._overlaps = overlaps
        self.prompt_heads = PromptHeads(runner)
        self._processor_slots: dict[int, int] = {}  # of sequences with logits processors

    def connect(self, connector: WorkerConnector) -> None:
        """Let ``connector`` load and save blocks from the next step on."""
        self.connector = self.runner.connector = connector

    @property
    def overlaps(self) -> bool:
        return self._overlaps

    @property
    def orders_beams(self) -> bool:
        states = self.runner.cache.recurrent
        return self._overlaps and self.drafter is None and not states and self.sampler.chooses_beams

    @property
    def keeps_sequences(self) -> bool:
        return self.drafter is not None and self.drafter.keeps_sequences

    def add(self, sequences: NewSequences) -> None:
        self.prompt_heads.add(sequences)
        self.runner.inputs.add(sequences)
        if sequences.prompt_only:
            return
        self.sampler.add(sequences)
        if self.drafter is not None:
            self.drafter.add(sequences)
        if sequences.processors:
            self._processor_slots.update(zip(sequences.ids, sequences.slots, strict=True))

    def fork(self, forked: ForkedSequences) -> None:
        self.runner.inputs.fork(forked)
        self.sampler.fork(forked)
        if self.drafter is not None:
            self.drafter.fork(forked)
        if forked.source in self._processor_slots:
            self._processor_slots.update(zip(forked.ids, forked.slots, strict=True))

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        ids = list(ids)
        self.runner.inputs.end(ids)
        if self.drafter is not None:
            self.drafter.end(ids)
        for each in ids:
            if aborted:
                self.prompt_heads.remove(each)
            if each in self._processor_slots:
                self.sampler.release([self._processor_slots.pop(each)])

    def takes_draft_state(self, state: bytes) -> bool:
        return not state if self.drafter is None else self.drafter.takes_state(state)

    def receive(self, sequence: int, slot: int, token: int, draft_state: bytes) -> None:
        if self.drafter is not None:
            self.drafter.receive(sequence, slot, token, draft_state)

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        if self.drafter is not None:
            assert self.runner.sampled is not None
            self.runner.sampled.begin(plan)
        choice = self.sampler.beams.choice
        order = choice.order(plan) if choice else None
        begun = self.runner.begin(plan, order)
        if self.drafter is not None:
            self.drafter.draft(begun)
        hidden, drafts = self._forward(begun)
        prompts = self.prompt_heads.submit(hidden, plan)
        logits = self.runner.logits(hidden, plan.logit_rows) if plan.num_rows else None
        step = LocalStep(self, plan, begun, hidden, logits, prompts, drafts)
        if not plan.sampling_flags & LATE:
            step.submit_sampling(None)
        return step

    def _forward(self, begun: DeviceStep) -> tuple[Tensor, Download | None]:
        """Hidden states [T, hidden] and, if masks depend on them, the drafts that only the device
        knows."""
        sampled, plan = self.runner.sampled, begun.plan
        verifies = self.drafter is not None and plan.num_outputs < plan.num_rows
        if sampled is None or not verifies or not plan.sampling_flags & CONSTRAINED:
            return self.runner.forward(begun), None
        if begun.captured is not None and begun.captured.drafts:  # the graph makes them
            hidden = self.runner.forward(begun)
            return hidden, sampled.download_drafts(plan.num_rows)
        drafts = sampled.download_drafts(plan.num_rows)  # the layers run while masks are filled
        return self.runner.forward(begun), drafts

    def masks(self, plan: HeadPlan, found: Download | None) -> TokenMasks | None:
        """Masks of what constrained rows may sample, once the previous step is committed;
        ``found``: the drafts that are -1 in the plan."""
        if self.constraints is None or not plan.sampling_flags & CONSTRAINED:
            return None
        drafts = plan.draft_tokens
        if found is not None:
            (known,) = found.read()
            drafts = np.where(drafts < 0, known, drafts)
        return self.constraints.fill(plan, drafts)

    @property
    def has_idle_work(self) -> bool:
        return self.runner.has_idle_work

    def work_idle(self) -> None:
        self.runner.work_idle()


class LocalStep:
    """A step on the device: its ``hidden`` states, and ``logits`` (None: no prompt ends in it).
    ``plan`` is the part of the step's plan that heads read."""

    def __init__(
        self,
        worker: LocalWorker,
        plan: HeadPlan,
        begun: DeviceStep,
        hidden: Tensor | None,
        logits: Tensor | None,
        prompts: dict[str, Sequence[Any]],
        drafts: Download | None,
    ) -> None:
        """``prompts``: what `PromptHeads` began. ``drafts``: the drafts that the plan does not
        know, if masks depend on them."""
        self._worker, self._plan, self._begun = worker, plan, begun
        self._hidden = hidden
        self._logits = logits
        self._prompts, self._drafts = prompts, drafts
        self._sizes = plan.num_seqs, plan.num_tokens
        self._sampling: SampleHandle | VerifyHandle | None = None

    def submit_sampling(self, previous: NDArray[np.int32] | None) -> None:
        """Sample from the logits, which are not needed any more."""
        if self._hidden is None:
            return
        worker, plan = self._worker, self._plan
        if self._logits is not None:
            masks = worker.masks(plan, self._drafts)
            head = worker.sampler if plan.num_outputs == plan.num_rows else worker.verifier
            self._sampling = head.submit(self._logits, plan, previous, masks=masks)
        if worker.drafter is not None:
            assert worker.runner.sampled is not None
            worker.runner.sampled.verify(self._begun)
            worker.drafter.extend(self._begun, self._hidden)
            if self._begun.hooks is not None:
                assert worker.connector is not None
                worker.connector.save_draft_states(self._begun.plan, worker.drafter)
        self._hidden = self._logits = None

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        self.submit_sampling(previous)

    def read(self) -> StepOutputs:
        sampled = self._sampling.read() if self._sampling is not None else None
        prompts, broken = self._worker.prompt_heads.read(self._prompts)
        return StepOutputs(*self._sizes, sampled, prompts, broken)

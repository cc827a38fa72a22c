# SPDX-License-Identifier: Apache-2.0
"""Drafts that the device computes token by token: with the model's draft head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.plan.step_plan import rows_are_tokens
from rtp_llm.worker.speculative.device_drafter import DeviceDrafter
from rtp_llm.worker.speculative.draft_loop import DraftLoop, Windows

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch
    from rtp_llm.device import Download
    from rtp_llm.device.streams import Graph
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.draft_sampling import DraftSampling

_DRAFT_BYTES = 4  # of a draft's id, in front of a state that travels


class Drafter(DeviceDrafter):
    """Each step calls it twice.

    `draft`, before the model's layers, computes the drafts that the plan names without knowing
    them. `extend`, after sampling, replaces the draft head's keys and values of the step's tokens:
    it computes them from the tokens that were sampled and the model's own hidden states. Its last
    row of a sequence gives the first draft of that sequence's next step, and the state that the
    second one is computed from; both are kept on the device, by the sequence's slot. Where drafts
    are sampled only the state is: the first one is sampled in the step that verifies it.

    What depends on how many drafts were right is computed on the device, and the host waits for
    nothing.
    """

    extends = True

    def __init__(
        self,
        runner: ModelRunner,
        sampled: SampledTokens,
        num_slots: int,
        max_draft_tokens: int,
        dtype: torch.dtype,
        sampling: DraftSampling | None = None,
    ) -> None:
        """At most ``max_draft_tokens`` of a sequence in a step; ``dtype`` of hidden states.
        ``sampling``: by which drafts are sampled; None: they are the most likely tokens.

        Graphs that the ``runner`` captures from now on compute drafts, too.
        """
        assert runner.model.drafts is not None, "the model was loaded without a draft head"
        place = runner.device.torch_device
        self._runner, self._sampled, self.sampling = runner, sampled, sampling
        self._loop = DraftLoop(runner, sampled, sampling, ahead=0)
        runner.drafts = self
        self.max_draft_tokens, self.padding_slot = max_draft_tokens, num_slots
        width = runner.model.drafts.width
        self._first = torch.zeros(num_slots + 1, dtype=torch.int32, device=place)
        self._states = torch.zeros(num_slots + 1, width, dtype=dtype, device=place)

    def add(self, sequences: NewSequences) -> None:
        if self.sampling is not None:
            self.sampling.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        if self.sampling is not None:
            self.sampling.fork(forked)
        where = self._runner.device.upload(np.array(forked.slots, np.int64))
        for kept in (self._first, self._states):
            kept.index_copy_(0, where, kept[[forked.source_slot] * len(where)])

    def draft(self, step: DeviceStep) -> None:
        """Compute the drafts of the step, whose layers come next."""
        if self.sampling is not None:
            self.sampling.begin()
        if step.captured is not None and step.captured.drafts:
            return  # its graph computes them
        windows = Windows.of(step.plan)
        if windows is not None:
            slots = self._runner.device.upload(step.plan.row_slots[windows.rows])
            self._draft(windows.part(step.batch), slots, windows.most, windows.first_row)

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        """``hidden`` [T, hidden] of the step's tokens, whose rows have been sampled."""
        if (graph := _graph_of(step)) is not None:
            graph.replay()
            return
        plan, upload = step.plan, self._runner.device.upload_all
        slots = plan.row_slots[plan.row_cu[:-1]]
        last = self._sampled.last_right_rows  # None: no output has drafts
        if rows_are_tokens(plan.logit_rows, plan.num_tokens):
            ids, tokens = self._sampled.tokens(plan.num_rows), last
            (there,) = upload(slots)
        else:
            ids, there, tokens = upload(_following(plan), slots, plan.logit_rows)
            self._sampled.substitute(ids)
            tokens = tokens if last is None else tokens.index_select(0, last)
        with step.layers() as batch:
            states = self._new_states(batch, ids, hidden, tokens)
        if plan.num_outputs:
            self._keep(there, states)

    def send_states(self, slots: NDArray[np.int32]) -> Download:
        """For each sequence its first draft, int32, followed by its state."""
        device = self._runner.device
        where = device.upload(slots.astype(np.int64))
        first = self._first.index_select(0, where)[:, None].view(torch.uint8)
        states = self._states.index_select(0, where).view(torch.uint8)
        return device.start_download(torch.cat((first, states), 1))

    def takes_state(self, state: bytes) -> bool:
        if len(state) != _DRAFT_BYTES + self._states[0].nbytes:
            return False
        (first,) = np.frombuffer(state, np.int32, 1)
        return 0 <= int(first) < self._runner.model.config.vocab_size

    def receive(self, sequence: int, slot: int, token: int, state: bytes) -> None:
        there = self._runner.device.upload(np.frombuffer(state, np.uint8).copy())
        self._first[slot : slot + 1].copy_(there[:_DRAFT_BYTES].view(torch.int32))
        self._states[slot].copy_(there[_DRAFT_BYTES:].view(self._states.dtype))

    def draft_rows(self, batch: ForwardBatch, slots: Tensor, previous: Tensor) -> None:
        """The drafts of sequences in ``slots`` int32 [B], where row r is that of token r."""
        if batch.max_seqlen_q > 1:
            self._draft(batch, slots, batch.max_seqlen_q - 1)

    def _draft(self, batch: ForwardBatch, slots: Tensor, most: int, first_row: int = 0) -> None:
        """Up to ``most`` drafts of each sequence; row ``first_row`` + r is that of token r."""
        states = ops.embedding(slots, self._states)
        first = self._first.index_select(0, slots) if self.sampling is None else None
        self._loop.run(batch, slots, states, most, first_row, first)

    def extend_rows(self, batch: ForwardBatch, slots: Tensor, hidden: Tensor) -> None:
        """For sequences in ``slots`` int32 [B], where row r is that of token r."""
        ids = self._sampled.tokens(len(batch.token_ids))
        # As SampledTokens has them, but in memory that stays in place.
        last = self._sampled.find_last_right_rows(batch.cu_seqlens_q, len(batch.token_ids))
        self._keep(slots, self._new_states(batch, ids, hidden, last))

    def _new_states(
        self, batch: ForwardBatch, ids: Tensor, hidden: Tensor, rows: Tensor | None
    ) -> Tensor:
        """States [R, width] of the draft head, from the ``ids`` int32 [T] that follow the step's
        tokens. Only for ``rows`` [R] (None: all), since most of the layer's weights are needed for
        no other row."""
        model = self._runner.model
        return model.draft(replace(batch, token_ids=ids), model.draft_states(hidden), rows)

    def _keep(self, slots: Tensor, states: Tensor) -> None:
        """What sequences in ``slots`` [O] go on from: ``states`` [O, width], and the most likely
        draft of each, unless drafts are sampled."""
        where = slots.long()
        self._states.index_copy_(0, where, states)
        if self.sampling is None:
            self._first.index_copy_(0, where, self._loop.best(states))


def _graph_of(step: DeviceStep) -> Graph | None:
    """The graph that extends, where the one before it drafts."""
    return None if step.captured is None else step.captured.extend


def _following(plan: StepPlan) -> NDArray[np.int32]:
    """For each token the next one, int32 [T]: known, or the name of the row that samples it.

    A wrong draft is followed by what was sampled there; nobody reads the result of that.
    """
    ids = np.empty(plan.num_tokens, np.int32)
    ids[:-1] = plan.token_ids[1:]
    ids[plan.cu_seqlens_q[1:] - 1] = plan.next_tokens
    ids[plan.logit_rows] = -1 - np.arange(plan.num_rows)
    return ids

"""Drafts that the device computes token by token: with the model's draft head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.worker.plan import rows_are_tokens
from rtp_llm.worker.speculative.device_drafter import DeviceDrafter

if TYPE_CHECKING:
    from rtp_llm.device.streams import Graph
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class Drafter(DeviceDrafter):
    """Each step calls it twice.

    `draft`, before the model's layers, computes the drafts that the plan names without knowing
    them. `extend`, after sampling, replaces the draft head's keys and values of the step's tokens:
    it computes them from the tokens that were sampled and the model's own hidden states. Its last
    row of a sequence gives the first draft of that sequence's next step, and the state that the
    second one is computed from; both are kept on the device, by the sequence's slot.

    What depends on how many drafts were right is computed on the device, and the host waits for
    nothing.
    """

    def __init__(
        self,
        runner: ModelRunner,
        sampled: SampledTokens,
        num_slots: int,
        max_draft_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        """At most ``max_draft_tokens`` of a sequence in a step; ``dtype`` of hidden states.

        Graphs that the ``runner`` captures from now on compute drafts, too.
        """
        assert runner.model.drafts is not None, "the model was loaded without a draft head"
        place = runner.device.torch_device
        self._runner, self._sampled, self._head = runner, sampled, runner.model.drafts
        runner.drafts = self
        self.max_draft_tokens, self.padding_slot = max_draft_tokens, num_slots
        self._first = torch.zeros(num_slots + 1, dtype=torch.int32, device=place)
        self._states = torch.zeros(num_slots + 1, self._head.width, dtype=dtype, device=place)

    def draft(self, step: DeviceStep) -> None:
        """Compute the drafts of the step, whose layers come next."""
        plan = step.plan
        if plan.num_rows == plan.num_outputs or _graph_of(step) is not None:
            return  # it verifies none, or its graph computes them
        counts = np.diff(plan.row_cu)
        (outputs,) = np.nonzero(counts > 1)  # they are one behind another, as are their sequences
        rows = plan.row_cu[outputs]
        token = int(plan.logit_rows[rows[0]])
        begin = int(np.searchsorted(plan.cu_seqlens_q, token))
        batch = _part(step.batch, begin, begin + len(outputs))
        slots = self._runner.device.upload(plan.row_slots[rows])
        self._draft(batch, slots, int(counts.max()) - 1, int(rows[0]) - token)

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
        states = self._new_states(step.batch, ids, hidden)
        if plan.num_outputs:
            self._keep(there, states if tokens is None else states.index_select(0, tokens))

    def draft_rows(self, batch: ForwardBatch, slots: Tensor) -> None:
        """The drafts of sequences in ``slots`` int32 [B], where row r is that of token r."""
        self._draft(batch, slots, batch.max_seqlen_q - 1)

    def _draft(self, batch: ForwardBatch, slots: Tensor, most: int, first_row: int = 0) -> None:
        """Up to ``most`` drafts of each sequence; row ``first_row`` + r is that of token r."""
        starts = batch.cu_seqlens_q[:-1]
        counts = batch.cu_seqlens_q[1:] - starts - 1  # of drafts; -1 for padding
        token = self._first.index_select(0, slots)
        states = self._states.index_select(0, slots)
        tokens = [token]
        for each in _draft_batches(batch, counts, most):
            states = self._runner.model.draft(replace(each, token_ids=token), states)
            token = self._best(states)
            tokens.append(token)
        # Those that a sequence does not verify go behind its last row, where nobody looks for one.
        numbers = torch.arange(most, dtype=torch.int32, device=slots.device)[:, None]
        rows = (starts + torch.minimum(numbers, counts)).clamp_(min=0)
        if first_row:
            rows += first_row
        self._sampled.drafts.index_copy_(0, rows.flatten().long(), torch.cat(tokens))

    def extend_rows(self, batch: ForwardBatch, slots: Tensor, hidden: Tensor) -> None:
        """For sequences in ``slots`` int32 [B], where row r is that of token r."""
        states = self._new_states(batch, self._sampled.tokens(len(batch.token_ids)), hidden)
        self._keep(slots, states.index_select(0, self._last_right_rows(batch)))

    def _new_states(self, batch: ForwardBatch, ids: Tensor, hidden: Tensor) -> Tensor:
        """States [T, width] of the draft head, from ``ids`` int32 [T] behind the step's tokens."""
        model = self._runner.model
        return model.draft(replace(batch, token_ids=ids), model.draft_states(hidden))

    def _last_right_rows(self, batch: ForwardBatch) -> Tensor:
        """As SampledTokens has them, int64 [B]: of each sequence the first row whose token is not
        the draft behind it. A graph finds them itself, in memory that stays in place."""
        rows = len(batch.token_ids)
        right = self._sampled.tokens(rows) == self._sampled.drafts[:rows]
        bounds = batch.cu_seqlens_q.long()
        first, last = bounds[:-1, None], (bounds[1:, None] - 1).clamp_(min=0)
        numbers = torch.arange(batch.max_seqlen_q, device=bounds.device)
        candidates = torch.minimum(first + numbers, last)
        return torch.where(right[candidates], last, candidates).amin(1)

    def _keep(self, slots: Tensor, states: Tensor) -> None:
        """What sequences in ``slots`` [O] go on from: ``states`` [O, width], a draft from each."""
        where = slots.long()
        self._states.index_copy_(0, where, states)
        self._first.index_copy_(0, where, self._best(states))

    def _best(self, states: Tensor) -> Tensor:
        """Token ids int32 [R]: the most likely ones."""
        return self._head.tokens(self._head.logits(states).argmax(1)).int()


def _graph_of(step: DeviceStep) -> Graph | None:
    """The graph that extends, where the one before it drafts."""
    return None if step.captured is None else step.captured.extend


def _following(plan: StepPlan) -> NDArray[np.int32]:
    """For each token the one behind it, int32 [T]: known, or the name of the row that samples it.

    Behind a draft that was wrong comes what was sampled there: nobody reads what that gives.
    """
    ids = np.empty(plan.num_tokens, np.int32)
    ids[:-1] = plan.token_ids[1:]
    ids[plan.cu_seqlens_q[1:] - 1] = plan.next_tokens
    ids[plan.logit_rows] = -1 - np.arange(plan.num_rows)
    return ids


def _part(batch: ForwardBatch, begin: int, end: int) -> ForwardBatch:
    """Its sequences ``begin`` to ``end``; their tokens keep their places."""
    return replace(
        batch,
        cu_seqlens_q=batch.cu_seqlens_q[begin : end + 1],
        seq_lens=batch.seq_lens[begin:end],
        block_table=tuple(table[begin:end] for table in batch.block_table),
    )


def _draft_batches(batch: ForwardBatch, counts: Tensor, most: int) -> list[ForwardBatch]:
    """The batches, but for their token ids, that compute the drafts behind the first one.

    Number j has one token of each sequence, draft j, at the position of the step's token before it.
    Those of sequences with fewer drafts (``counts`` int32 [B]) see no key and are not written.
    """
    if most < 2:
        return []
    steps = torch.arange(1, most, dtype=torch.int32, device=counts.device)[:, None]
    is_there = steps < counts
    computed = batch.seq_lens - counts - 1  # before this step
    lens = torch.where(is_there, computed + steps, 0)
    positions = (lens - 1).clamp_(min=0)
    places = (batch.cu_seqlens_q[:-1] + (steps - 1)).clamp_(max=len(batch.token_ids) - 1).long()
    slots = tuple(
        torch.where(is_there, mapping[places], -1) if len(mapping) else None
        for mapping in batch.slot_mapping
    )
    part = replace(
        batch,
        cu_seqlens_q=torch.arange(len(counts) + 1, dtype=torch.int32, device=counts.device),
        max_seqlen_q=1,
        host=None,
        states=(),
        state_read=(),
        state_write=(),
    )
    return [
        replace(
            part,
            positions=positions[step],
            seq_lens=lens[step],
            slot_mapping=tuple(
                mapping if each is None else each[step]
                for mapping, each in zip(batch.slot_mapping, slots, strict=True)
            ),
        )
        for step in range(most - 1)
    ]

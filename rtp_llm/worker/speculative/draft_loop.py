# SPDX-License-Identifier: Apache-2.0
"""Drafts one after another: each is computed from the one before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.batch import ForwardBatch

if TYPE_CHECKING:
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.draft_sampling import DraftSampling


@dataclass(frozen=True)
class Windows:
    """The S sequences of a plan that verify drafts: number ``begin`` and the following ones.

    ``rows`` [S] is the first row of each, ``counts`` [S] the number of its drafts. Row
    ``first_row`` + t belongs to token t.
    """

    begin: int
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    first_row: int

    @classmethod
    def of(cls, plan: StepPlan) -> Windows | None:
        """None: no sequence verifies drafts."""
        if plan.num_rows == plan.num_outputs:
            return None
        counts = np.diff(plan.row_cu) - 1
        (outputs,) = np.nonzero(counts)  # they are consecutive, and so are their sequences
        rows = plan.row_cu[outputs]
        token = int(plan.logit_rows[rows[0]])
        begin = int(np.searchsorted(plan.cu_seqlens_q, token))
        return cls(begin, rows, counts[outputs], int(rows[0]) - token)

    @property
    def end(self) -> int:
        """The index after the last sequence."""
        return self.begin + len(self.rows)

    @property
    def most(self) -> int:
        """Drafts of the sequence that has most."""
        return int(self.counts.max())

    def part(self, batch: ForwardBatch) -> ForwardBatch:
        """These sequences of the plan's batch; their tokens keep their places."""
        begin, end = self.begin, self.end
        return replace(
            batch,
            cu_seqlens_q=batch.cu_seqlens_q[begin : end + 1],
            seq_lens=batch.seq_lens[begin:end],
            block_table=tuple(table[begin:end] for table in batch.block_table),
        )


class DraftLoop:
    """Computes the drafts of a step after each sequence's first one, and hands over all of them."""

    def __init__(
        self,
        runner: ModelRunner,
        sampled: SampledTokens,
        sampling: DraftSampling | None,
        *,
        ahead: int,
    ) -> None:
        """``sampling`` samples the drafts; without it they are the most likely tokens.

        ``ahead``: how many positions a token comes after the previous token: 0 in heads, which read
        a token along with the state of the previous one, and 1 in models.
        """
        assert runner.model.drafts is not None, "the model was loaded without what drafts"
        self._runner, self._sampled, self._head = runner, sampled, runner.model.drafts
        self._sampling, self._ahead = sampling, ahead
        rows, place = sampled.max_rows, runner.device.torch_device
        zeros, wide = torch.zeros(rows, device=place), torch.zeros(rows, device=place).long()
        self._greedy = zeros, zeros.int(), zeros + 1, zeros, wide, wide  # for ops.sample

    def run(
        self,
        batch: ForwardBatch,
        slots: Tensor,
        states: Tensor,
        most: int,
        first_row: int = 0,
        first: Tensor | None = None,
    ) -> None:
        """Find up to ``most`` drafts of each sequence of a step's ``batch``, in ``slots`` [B].

        The first comes from ``states`` [B, ...], unless it is known: ``first`` int32 [B]. Row
        ``first_row`` + r is that of token r.
        """
        starts = batch.cu_seqlens_q[:-1]
        counts = batch.cu_seqlens_q[1:] - starts - 1  # of drafts; -1 for padding
        # Drafts that a sequence does not verify go to its last row, where nobody looks for one.
        numbers = torch.arange(most, dtype=torch.int32, device=slots.device)[:, None]
        rows = (starts + torch.minimum(numbers, counts)).clamp_(min=0)
        if first_row:
            rows += first_row
        rows = rows.long()

        def choose(number: int) -> Tensor:
            if self._sampling is None:
                return self.best(states)
            logits, position = self._head.logits(states), batch.seq_lens - counts + number
            self._sampling.keep(logits, rows[number])
            chosen = self._sampling.sample(logits, slots, position)
            return self._head.tokens(chosen.long()).int()

        tokens = [choose(0) if first is None else first]
        for number, each in enumerate(_draft_batches(batch, counts, most, self._ahead), 1):
            # A draft model goes on from tokens alone, [B, 0].
            states = states[:, : self._head.width]
            states = self._runner.model.draft(replace(each, token_ids=tokens[-1]), states)
            tokens.append(choose(number))
        self._sampled.drafts.index_copy_(0, rows.flatten(), torch.cat(tokens))

    def best(self, states: Tensor) -> Tensor:
        """Token ids int32 [R]: the most likely ones."""
        logits = self._head.logits(states)
        tokens, _ = ops.sample(logits, *(each[: len(logits)] for each in self._greedy))
        return self._head.tokens(tokens).int()


def _draft_batches(
    batch: ForwardBatch, counts: Tensor, most: int, ahead: int
) -> list[ForwardBatch]:
    """The batches, except for their token ids, that compute the drafts after the first one.

    Batch j has one token of each sequence, draft j, ``ahead`` of the step's token before it.
    Tokens of sequences with fewer drafts (``counts`` int32 [B]) see no key and are not written.
    """
    if most < 2:
        return []
    steps = torch.arange(1, most, dtype=torch.int32, device=counts.device)[:, None]
    is_there = steps < counts
    computed = batch.seq_lens - counts - 1  # before this step
    lens = torch.where(is_there, computed + (steps + ahead), 0)
    positions = (lens - 1).clamp_(min=0)
    last = len(batch.token_ids) - 1
    places = (batch.cu_seqlens_q[:-1] + (steps + (ahead - 1))).clamp_(max=last).long()
    slots = [
        torch.where(is_there, mapping[places], -1) if len(mapping) else [mapping] * most
        for mapping in batch.slot_mapping
    ]
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
            slot_mapping=tuple(of_group[step] for of_group in slots),
        )
        for step in range(most - 1)
    ]

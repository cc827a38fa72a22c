# SPDX-License-Identifier: Apache-2.0
"""Drafts of a draft model, which goes on from tokens and needs nothing of the model's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.worker.speculative.device_drafter import DeviceDrafter
from rtp_llm.worker.speculative.draft_loop import DraftLoop, Windows

if TYPE_CHECKING:
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.draft_sampling import DraftSampling


class ModelDrafter(DeviceDrafter):
    """Drafts before the model's layers, in as many forwards as there are drafts.

    A token is at its own position in both models, and what the draft model keeps of it depends on
    the tokens up to there alone: of a draft that was right it has the right keys and values, but
    for the last one, which it never computed. So the first forward takes the step's tokens that are
    no drafts, and the one before them, which may be that last draft; if it is not, the same is
    written again. From then on the draft model has keys and values wherever the model has some.
    Between steps only the cache is kept.

    If a sequence ends with a draft, that token is not computed. A sequence that finds it in the
    prefix cache computes it, as the token before its own first one.
    """

    extends = False

    def __init__(
        self,
        runner: ModelRunner,
        sampled: SampledTokens,
        num_slots: int,
        max_draft_tokens: int,
        sampling: DraftSampling | None = None,
    ) -> None:
        """At most ``max_draft_tokens`` of a sequence in a step. ``sampling``: by which drafts are
        sampled; None: they are the most likely tokens.

        Graphs that the ``runner`` captures from now on compute drafts, too.
        """
        self._runner, self._sampled, self.sampling = runner, sampled, sampling
        self._loop = DraftLoop(runner, sampled, sampling, ahead=1)
        self.max_draft_tokens, self.padding_slot = max_draft_tokens, num_slots
        runner.drafts = self

    def add(self, sequences: NewSequences) -> None:
        if self.sampling is not None:
            self.sampling.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        if self.sampling is not None:
            self.sampling.fork(forked)

    def draft(self, step: DeviceStep) -> None:
        """Compute the drafts of the step, whose layers come next."""
        if self.sampling is not None:
            self.sampling.begin()
        if step.captured is not None and step.captured.drafts:
            return
        plan, batch = step.plan, step.batch
        windows = Windows.of(plan)
        of_drafts = np.zeros(plan.num_seqs, np.int32)
        if windows is not None:
            of_drafts[windows.begin : windows.end] = windows.counts
        names = self._sampled.named_by_next(plan.previous_tokens)
        rows = () if windows is None else (plan.row_slots[windows.rows],)
        previous, counts, *slots = self._runner.device.upload_all(names, of_drafts, *rows)
        assert batch.host is not None, "made from a plan"
        host = _known_host(plan, of_drafts, exact=batch.host.exact)
        with step.layers() as written:
            states, ends = self._compute_known(written, previous, counts, host)
        if windows is not None:
            states = states.index_select(0, ends[windows.begin : windows.end])
            part = windows.part(batch)
            self._loop.run(part, slots[0], states, windows.most, windows.first_row)

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        """``hidden`` [T, hidden] of the step's tokens is the model's own business."""
        self._sampled.keep_computed(step, step.batch.token_ids)

    def draft_rows(self, batch: ForwardBatch, slots: Tensor, previous: Tensor) -> None:
        """The drafts of sequences in ``slots`` int32 [B], where row r is that of token r."""
        counts = (batch.cu_seqlens_q.diff() - 1).clamp_(min=0)
        states, ends = self._compute_known(batch, previous, counts)
        if batch.max_seqlen_q > 1:
            states = states.index_select(0, ends.clamp(min=0))
            self._loop.run(batch, slots, states, batch.max_seqlen_q - 1)

    def extend_rows(self, batch: ForwardBatch, slots: Tensor, hidden: Tensor) -> None:
        """Nothing is left to do in graphs."""

    def _compute_known(
        self,
        batch: ForwardBatch,
        previous: Tensor,
        counts: Tensor,
        host: HostNumbers | None = None,
    ) -> tuple[Tensor, Tensor]:
        """States [N, ...] of all tokens of a step except drafts, and the index of each sequence's
        last one, int32 [B]. Without ``host`` numbers each sequence has one token, then drafts."""
        size = (2 * len(counts), 2) if host is None else _size(host)
        known = _known_tokens(batch, previous, counts, size, self._runner.cache.block_size)
        self._sampled.substitute(known.token_ids)
        known = replace(known, host=host)
        nothing = previous.new_empty(len(known.token_ids), 0)
        states = self._runner.model.draft(known, nothing)
        return states, known.cu_seqlens_q[1:] - 1


def _known_host(plan: StepPlan, counts: NDArray[np.int32], *, exact: bool) -> HostNumbers:
    """Of `_known_tokens`."""
    has_previous = plan.positions[plan.cu_seqlens_q[:-1]] > 0
    lengths = np.diff(plan.cu_seqlens_q) - counts + has_previous
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return HostNumbers(cu_seqlens, plan.seq_lens - counts, plan.block_table, exact)


def _size(host: HostNumbers) -> tuple[int, int]:
    """Tokens, and those of the sequence that has most."""
    return int(host.cu_seqlens_q[-1]), int(np.diff(host.cu_seqlens_q).max())


def _known_tokens(
    batch: ForwardBatch, previous: Tensor, counts: Tensor, size: tuple[int, int], block_size: int
) -> ForwardBatch:
    """A step without its drafts, of which each sequence has ``counts`` int32 [B], but with the
    tokens ``previous`` int32 [B] before those of the step, where there are some.

    ``size``: its tokens, of which the last ones may be padding, and the most of one sequence.
    """
    total, longest = size
    starts, seq_lens = batch.cu_seqlens_q[:-1], batch.seq_lens - counts
    lengths = batch.cu_seqlens_q[1:] - starts - counts
    first = seq_lens - lengths  # its position
    more = ((first > 0) & (lengths > 0)).int()
    cu_seqlens = pad(torch.cumsum(lengths + more, 0, dtype=torch.int32), (1, 0))
    place = torch.arange(total, dtype=torch.int32, device=starts.device)
    sequence = torch.searchsorted(cu_seqlens[1:], place, right=True).clamp_(max=len(starts) - 1)
    is_there = place < cu_seqlens[-1]
    offset = place - cu_seqlens[sequence] - more[sequence]  # the first one; -1: before it
    tokens = (starts[sequence] + offset).clamp_(0, len(batch.token_ids) - 1)
    positions = torch.where(is_there, first[sequence] + offset, 0)
    return replace(
        batch,
        token_ids=torch.where(offset < 0, previous[sequence], batch.token_ids[tokens]),
        positions=positions,
        cu_seqlens_q=cu_seqlens,
        seq_lens=seq_lens,
        max_seqlen_q=longest,
        slot_mapping=tuple(
            torch.where(is_there, _slots(positions, sequence, table, block_size), -1)
            if len(table)
            else mapping
            for mapping, table in zip(batch.slot_mapping, batch.block_table, strict=True)
        ),
        states=(),
        state_read=(),
        state_write=(),
    )


def _slots(positions: Tensor, sequence: Tensor, table: Tensor, block_size: int) -> Tensor:
    """int32, of tokens at ``positions`` of the sequences that are rows of ``table`` [B, M]."""
    return table[sequence, positions // block_size] * block_size + positions % block_size

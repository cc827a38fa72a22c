"""Tokens that only the device knows yet: steps name them, and find them at one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.correction import Correction

if TYPE_CHECKING:
    from rtp_llm.device import Device, Download
    from rtp_llm.worker.plan import StepPlan


class SampledTokens:
    """What lets a step be submitted before the host knows the tokens that it is computed from.

    Those of the last step are named by their rows there; drafts of the step at hand, where the
    device finds them, by the rows that they follow. They lie at one place, so that captured graphs
    find them. All of it happens in the order of the device's work: a step reads the tokens before
    its own replace them.

    Where steps have drafts, each goes through `begin` before it is submitted and through `verify`
    once its rows are sampled: the next one, planned as if all drafts were right, is corrected by
    those that were not.
    """

    def __init__(self, max_rows: int, device: Device) -> None:
        self._device = device
        self._tokens = torch.zeros(2 * max_rows, dtype=torch.int32, device=device.torch_device)
        self._rows, self.drafts = self._tokens[:max_rows], self._tokens[max_rows:]
        # Of the last step that verified drafts, by the last row of an output: how many were
        # rejected, and whether it had any. One row more stands for no row.
        self._rejected = torch.zeros(max_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._drafted = np.zeros(max_rows + 1, np.bool_)
        self.correction: Correction | None = None
        self.last_right_rows: Tensor | None = None

    def begin(self, plan: StepPlan) -> None:
        """A step is to be submitted: ``correction`` is what its plan has to be corrected by."""
        self.correction = None
        if self.last_right_rows is None:  # the step before had no drafts
            return
        first = plan.token_ids[plan.cu_seqlens_q[:-1]]
        rows = np.where(first < 0, -1 - first, len(self._drafted) - 1)
        if not self._drafted[rows].any():
            return
        sequence = np.repeat(np.arange(plan.num_seqs), np.diff(plan.cu_seqlens_q))
        before, of, logit_rows = self._device.upload_all(
            rows.astype(np.int64), sequence, plan.logit_rows.astype(np.int64)
        )
        of_sequence = self._rejected.index_select(0, before)
        of_token = of_sequence.index_select(0, of)
        of_row = of_token.index_select(0, logit_rows).long()
        self.correction = Correction(of_sequence, of_token, of_row, of)

    def verify(self, plan: StepPlan) -> None:
        """The rows of a step are sampled: ``last_right_rows`` int64 [O] are those of its outputs'
        last tokens that count, None without drafts.

        The next step finds those tokens under the outputs' last rows.
        """
        self.last_right_rows = None
        if plan.num_outputs == plan.num_rows:
            return
        counts = np.diff(plan.row_cu)
        last = plan.row_cu[1:].astype(np.int64) - 1
        self._drafted.fill(False)
        self._drafted[last] = counts > 1
        is_last = np.zeros(plan.num_rows, np.bool_)
        is_last[last] = True
        output = np.repeat(np.arange(plan.num_outputs), counts)
        rows, of_row, ends, no_draft = self._device.upload_all(
            np.arange(plan.num_rows), output, last, is_last
        )
        wrong = (self.tokens(plan.num_rows) != self.drafts[: plan.num_rows]) | no_draft
        right = torch.full_like(ends, plan.num_rows)
        right.scatter_reduce_(0, of_row, torch.where(wrong, rows, plan.num_rows), "amin")
        self._rejected.index_copy_(0, ends, (ends - right).int())
        self._rows.index_copy_(0, ends, self._rows.index_select(0, right))
        self.last_right_rows = right

    def substitute(self, ids: Tensor) -> None:
        """Replace names among ``ids`` (int32 [T]) by their tokens, in place.

        -(r + 1) is the token of row r of the step before, -(max_rows + r + 1) the draft behind row
        r of this one; token 0 stands in for a draft of -1, which is not there.
        """
        ops.substitute_tokens(ids, self._tokens)

    def keep(self, tokens: Tensor) -> None:
        """A step sampled ``tokens`` (int32 [R])."""
        self._rows[: len(tokens)].copy_(tokens)

    def tokens(self, num_rows: int) -> Tensor:
        """Those of the last step, int32 [num_rows]."""
        return self._rows[:num_rows]

    def download(self) -> Download:
        """All that names stand for, int32 [2 max_rows]: the token of name -(i + 1) is number i."""
        return self._device.start_download(self._tokens)

    def download_drafts(self, num_rows: int) -> Download:
        """The drafts of this step, int32 [num_rows]; meaningless behind rows that have none."""
        return self._device.start_download(self.drafts[:num_rows].clone())

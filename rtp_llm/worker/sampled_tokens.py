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

    def __init__(self, max_rows: int, device: Device, *, optimistic: bool = False) -> None:
        """``optimistic``: plans take the drafts in flight for right."""
        self._device = device
        self._tokens = torch.zeros(2 * max_rows, dtype=torch.int32, device=device.torch_device)
        self._rows, self.drafts = self._tokens[:max_rows], self._tokens[max_rows:]
        # Of the last step that verified drafts, by the last row of an output: how many were
        # rejected, and whether it had any. One row more stands for no row.
        self._rejected = torch.zeros(max_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._drafted = np.zeros(max_rows + 1, np.bool_)
        self._optimistic = optimistic
        self.correction: Correction | None = None
        self._verified: StepPlan | None = None  # the last step, if it had drafts
        self._last_right_rows: Tensor | None = None

    def begin(self, plan: StepPlan) -> None:
        """A step is to be submitted: ``correction`` is what its plan has to be corrected by."""
        self.correction = None
        if self._verified is None or not self._optimistic:
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
        """The rows of a step are sampled: the next one finds the last token of an output that
        counts under the output's last row, where plans take drafts for right."""
        self._last_right_rows = None
        self._verified = plan if plan.num_outputs < plan.num_rows else None
        if self._verified is None or not self._optimistic:
            return
        right, last = self.last_right_rows, plan.row_cu[1:].astype(np.int64) - 1
        assert right is not None
        self._drafted.fill(False)
        self._drafted[last] = np.diff(plan.row_cu) > 1
        ends = self._device.upload(last)
        self._rejected.index_copy_(0, ends, (ends - right).int())
        self._rows.index_copy_(0, ends, self._rows.index_select(0, right))

    @property
    def last_right_rows(self) -> Tensor | None:
        """Rows int64 [O] of the last tokens that count of the step that was verified; None: it had
        no drafts. To be asked for before its plan changes."""
        if self._last_right_rows is None and self._verified is not None:
            self._last_right_rows = self._find_last_right_rows(self._verified)
        return self._last_right_rows

    def _find_last_right_rows(self, plan: StepPlan) -> Tensor:
        """The first row of each output whose token is not the draft behind it."""
        count = plan.num_rows
        is_last = np.zeros(count, np.bool_)
        is_last[plan.row_cu[1:] - 1] = True
        output = np.repeat(np.arange(plan.num_outputs), np.diff(plan.row_cu))
        rows, of_row, no_draft = self._device.upload_all(np.arange(count), output, is_last)
        wrong = (self.tokens(count) != self.drafts[:count]) | no_draft
        found = rows.new_full((plan.num_outputs,), count)
        return found.scatter_reduce_(0, of_row, torch.where(wrong, rows, count), "amin")

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

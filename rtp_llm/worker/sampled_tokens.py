# SPDX-License-Identifier: Apache-2.0
"""Tokens that only the device knows yet: steps name them, and find them at one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.correction import Correction
from rtp_llm.worker.plan.step_plan import rows_are_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtp_llm.device import Device, Download
    from rtp_llm.worker.plan.step_plan import StepPlan


class BegunStep(Protocol):
    """A step that the device has begun: a DeviceStep."""

    @property
    def plan(self) -> StepPlan: ...
    @property
    def cu_rows(self) -> Tensor: ...


class SampledTokens:
    """What lets a step be submitted before the host knows the tokens that it is computed from.

    Those of the last step are named by their rows there; drafts of the step at hand, where the
    device finds them, by the rows that they follow. They lie at one place, so that captured graphs
    find them. All of it happens in the order of the device's work: a step reads the tokens before
    its own replace them.

    Where steps have drafts, each goes through `begin` before it is submitted and through `verify`
    once its rows are sampled: the next one, planned as if all drafts were right, is corrected by
    those that were not. Through `keep_computed`, too, where drafts need the token before a step.
    """

    def __init__(self, max_rows: int, device: Device, *, optimistic: bool = False) -> None:
        """``optimistic``: plans take the drafts in flight for right."""
        self._device = device
        self._tokens = torch.zeros(3 * max_rows, dtype=torch.int32, device=device.torch_device)
        self.max_rows = max_rows
        self._rows, self.drafts = self._tokens[:max_rows], self._tokens[max_rows : 2 * max_rows]
        self._before = self._tokens[2 * max_rows :]
        # Of the last step that verified drafts, by the last row of an output: how many were
        # rejected, and whether it had any. One row more stands for no row.
        self._rejected = torch.zeros(max_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._drafted = np.zeros(max_rows + 1, np.bool_)
        self._optimistic = optimistic
        self.correction: Correction | None = None
        # Rows int32 [O] of the last tokens that count of the last step; None: it had no drafts.
        self.last_right_rows: Tensor | None = None

    def begin(self, plan: StepPlan) -> None:
        """A step is to be submitted: ``correction`` is what its plan has to be corrected by."""
        self.correction = None
        if not self._optimistic:
            return
        first = plan.token_ids[plan.cu_seqlens_q[:-1]]
        places = np.where(first < 0, -1 - first, len(self._drafted) - 1).astype(np.int32)
        if self._drafted[places].any():
            sequence = np.searchsorted(plan.cu_seqlens_q, plan.logit_rows, side="right") - 1
            self.correction = Correction(self._rejected, places, places[sequence])

    def verify(self, step: BegunStep) -> None:
        """The rows of a step are sampled: the next one finds the last token of an output that
        counts under the output's last row, where plans take drafts for right."""
        plan = step.plan
        self.last_right_rows = None
        self._drafted.fill(False)
        if plan.num_outputs == plan.num_rows:
            return
        keep = self._optimistic
        self.last_right_rows = self.find_last_right_rows(step.cu_rows, plan.num_rows, keep=keep)
        self._drafted[plan.row_cu[1:] - 1] = np.diff(plan.row_cu) > 1

    def keep_computed(self, step: BegunStep, ids: Tensor) -> None:
        """``step`` was verified, and computed from ``ids`` int32 [T]: the next one, which takes its
        drafts for right, may ask for what the last token that counts was computed from."""
        right, plan = self.last_right_rows, step.plan
        if right is None or not self._optimistic:
            return
        if not rows_are_tokens(plan.logit_rows, plan.num_tokens):
            right = self._device.upload(plan.logit_rows).index_select(0, right)
        ends = step.cu_rows[1:].long() - 1
        self._before.index_copy_(0, ends, ids.index_select(0, right))

    def named_by_next(self, names: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids as they are; of rows of the step before, names of what they were computed from."""
        return np.where(names < 0, names - 2 * self.max_rows, names).astype(np.int32)

    def find_last_right_rows(self, cu_rows: Tensor, num_rows: int, *, keep: bool = False) -> Tensor:
        """The first row of each output whose token differs from the draft that follows, int32 [O].

        ``cu_rows``: int32 [O + 1]. With ``keep`` the next step finds its token under the last row.
        """
        tokens, drafts = self._rows[:num_rows], self.drafts[:num_rows]
        return ops.accept_drafts(tokens, self._rejected, drafts, cu_rows, keep)

    def substitute(self, ids: Tensor) -> None:
        """Replace names among ``ids`` (int32 [T]) by their tokens, in place.

        -(r + 1) is the token of row r of the previous step, -(max_rows + r + 1) the draft that
        follows row r of this step, and -(2 max_rows + r + 1) the token that row r of the previous
        step was computed from, if it was kept. A missing draft (-1) is replaced by token 0.
        """
        ops.substitute_tokens(ids, self._tokens)

    def keep(self, tokens: Tensor) -> None:
        """A step sampled ``tokens`` (int32 [R])."""
        self._rows[: len(tokens)].copy_(tokens)

    def tokens(self, num_rows: int) -> Tensor:
        """Those of the last step, int32 [num_rows]."""
        return self._rows[:num_rows]

    def download(self) -> Download:
        """What plans' names stand for, int32 [2 max_rows]: that of -(i + 1) is number i."""
        return self._device.start_download(self._tokens[: 2 * self.max_rows])

    def download_drafts(self, num_rows: int) -> Download:
        """The drafts of this step, int32 [num_rows]; meaningless for rows without a draft."""
        return self._device.start_download(self.drafts[:num_rows].clone())

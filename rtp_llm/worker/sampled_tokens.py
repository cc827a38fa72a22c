# SPDX-License-Identifier: Apache-2.0
"""Tokens that only the device knows yet, which steps refer to by name and find in one place."""

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
    """Lets a step be submitted before the host knows the tokens that it is computed from.

    Tokens of the last step are named by their rows there; drafts of the current step, if the device
    finds them, by the rows that they follow. They stay in one place, so that captured graphs find
    them. Everything happens in the order of the device's work: a step reads the tokens before its
    own replace them.

    A step with drafts goes through `begin` before it is submitted and through `verify` once its
    rows are sampled: the next step, planned as if all drafts were accepted, is corrected for the
    rejected ones. It also goes through `keep_computed` if drafts need the token before a step.
    """

    def __init__(self, max_rows: int, device: Device, *, optimistic: bool = False) -> None:
        """``optimistic``: plans assume that the drafts in flight are accepted."""
        self._device = device
        self._tokens = torch.zeros(3 * max_rows, dtype=torch.int32, device=device.torch_device)
        self.max_rows = max_rows
        self._rows, self.drafts = self._tokens[:max_rows], self._tokens[max_rows : 2 * max_rows]
        self._before = self._tokens[2 * max_rows :]
        # For the last step that verified drafts, by the last row of an output: how many were
        # rejected, and whether it had any. An extra row stands for no row.
        self._rejected = torch.zeros(max_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._drafted = np.zeros(max_rows + 1, np.bool_)
        self._optimistic = optimistic
        self.correction: Correction | None = None
        # Rows int32 [O] of the last accepted tokens of the last step; None: it had no drafts.
        self.last_right_rows: Tensor | None = None

    def begin(self, plan: StepPlan) -> None:
        """Call before a step is submitted: sets the ``correction`` of its plan."""
        self.correction = None
        if not self._optimistic:
            return
        first = plan.token_ids[plan.cu_seqlens_q[:-1]]
        places = np.where(first < 0, -1 - first, len(self._drafted) - 1).astype(np.int32)
        if self._drafted[places].any():
            sequence = np.searchsorted(plan.cu_seqlens_q, plan.logit_rows, side="right") - 1
            self.correction = Correction(self._rejected, places, places[sequence])

    def verify(self, step: BegunStep) -> None:
        """Call once the rows of a step are sampled: if plans are optimistic, the next step finds
        the last accepted token of an output under the output's last row."""
        plan = step.plan
        self.last_right_rows = None
        self._drafted.fill(False)
        if plan.num_outputs == plan.num_rows:
            return
        keep = self._optimistic
        self.last_right_rows = self.find_last_right_rows(step.cu_rows, plan.num_rows, keep=keep)
        self._drafted[plan.row_cu[1:] - 1] = np.diff(plan.row_cu) > 1

    def keep_computed(self, step: BegunStep, ids: Tensor) -> None:
        """Call once ``step``, computed from ``ids`` int32 [T], is verified: the next step, planned
        optimistically, may ask which token the last accepted one was computed from."""
        right, plan = self.last_right_rows, step.plan
        if right is None or not self._optimistic:
            return
        if not rows_are_tokens(plan.logit_rows, plan.num_tokens):
            right = self._device.upload(plan.logit_rows).index_select(0, right)
        ends = step.cu_rows[1:].long() - 1
        self._before.index_copy_(0, ends, ids.index_select(0, right))

    def named_by_next(self, names: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids unchanged; names of rows of the previous step become names of the tokens from which
        those rows were computed."""
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

    def replace(self, rows: Tensor, tokens: Tensor) -> None:
        """Rows [N] int64 of the last step stand for ``tokens`` int32 [N] instead."""
        self._rows.index_copy_(0, rows, tokens)

    def tokens(self, num_rows: int) -> Tensor:
        """The tokens of the last step, int32 [num_rows]."""
        return self._rows[:num_rows]

    def download(self) -> Download:
        """The tokens that names in plans stand for, int32 [2 max_rows]: -(i + 1) is entry i."""
        return self._device.start_download(self._tokens[: 2 * self.max_rows])

    def download_drafts(self, num_rows: int) -> Download:
        """The drafts of this step, int32 [num_rows]; meaningless for rows without a draft."""
        return self._device.start_download(self.drafts[:num_rows].clone())

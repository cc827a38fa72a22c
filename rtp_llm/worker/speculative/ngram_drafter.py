# SPDX-License-Identifier: Apache-2.0
"""Drafts from what a sequence has said, or was asked, before, that the device looks up itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.speculative.device_drafter import DeviceDrafter

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.token_histories import TokenHistories


class NgramDrafter(DeviceDrafter):
    """The drafts of NgramProposer without the host: one operator before the layers, one after.

    The host does not know whether a sequence has drafts, so each sequence computes as many as the
    plan says; missing ones are -1.
    """

    keeps_sequences = True

    def __init__(
        self,
        histories: TokenHistories,
        sampled: SampledTokens,
        device: Device,
        *,
        min_n: int,
        max_n: int,
    ) -> None:
        """N-grams of ``min_n`` to ``max_n`` tokens."""
        self.histories = histories
        self._sampled, self._device = sampled, device
        self._min_n, self._max_n = min_n, max_n
        self._step: tuple[Tensor, Tensor] | None = None  # histories and rows of its outputs

    def add(self, sequences: NewSequences) -> None:
        if sequences.sampling.speculate:
            self.histories.add(sequences.ids, sequences.slots, sequences.prompt)

    def fork(self, forked: ForkedSequences) -> None:
        self.histories.fork(forked)

    def end(self, ids: Iterable[int]) -> None:
        self.histories.end(ids)

    def receive(self, sequence: int, slot: int, token: int, state: bytes) -> None:
        self.histories.append(sequence, token)

    def draft(self, step: DeviceStep) -> None:
        self._step, plan = None, step.plan
        if not plan.num_outputs:
            return
        of_step = self.histories.of_step(plan.row_slots[plan.row_cu[:-1]])
        complete = self.histories.complete(of_step)
        outputs, known = self._device.upload_all(of_step, complete)
        self._step = outputs, step.cu_rows
        if plan.num_rows > plan.num_outputs:
            ops.match_ngrams(
                self._sampled.drafts[: plan.num_rows],
                self.histories.tokens,
                self.histories.lens,
                known,
                step.cu_rows,
                self._min_n,
                self._max_n,
            )

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        if self._step is None:
            return
        outputs, cu_rows = self._step
        rows = step.plan.num_rows
        ops.append_accepted(
            self.histories.tokens,
            self.histories.lens,
            outputs,
            cu_rows,
            self._sampled.tokens(rows),
            self._sampled.drafts[:rows],
        )

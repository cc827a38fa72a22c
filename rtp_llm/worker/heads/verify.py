# SPDX-License-Identifier: Apache-2.0
"""The head that verifies drafts: which of the tokens sampled after them count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.heads.sample_handle import Sampled
from rtp_llm.worker.heads.sampler import SampledDrafts
from rtp_llm.worker.heads.sampling_flags import PROCESSORS, RANDOM
from rtp_llm.worker.plan.step_plan import SamplingRows

if TYPE_CHECKING:
    from rtp_llm.device import Download
    from rtp_llm.worker.grammar.row_masks import TokenMasks
    from rtp_llm.worker.heads.sample_handle import SampleHandle
    from rtp_llm.worker.heads.sampler import Sampler
    from rtp_llm.worker.plan.step_plan import HeadPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.draft_sampling import DraftSampling


class VerifyHead:
    """Samples a token for each row of outputs with drafts, and accepts drafts that equal it.

    If a draft is one token, not a distribution, then accepting it when the model samples it, and
    otherwise taking what the model sampled, is exactly rejection sampling. Every row is sampled
    with the seed and the step number that it has without drafts, so that a seeded request gets the
    same tokens. Sampled drafts go through `rejection_sample`: its token for a row equals the draft
    that follows the row if and only if it is accepted; the rest is the same.
    """

    def __init__(
        self,
        sampler: Sampler,
        device_drafts: SampledTokens | None = None,
        sampling: DraftSampling | None = None,
    ) -> None:
        """``device_drafts`` has the drafts that plans do not know; ``sampling`` has what they were
        sampled from, or is None if they were not sampled."""
        self._sampler = sampler
        self._device_drafts, self._sampling = device_drafts, sampling

    def submit(
        self,
        logits: Tensor,
        plan: HeadPlan,
        previous: NDArray[np.int32] | None = None,
        *,
        masks: TokenMasks | None = None,
    ) -> VerifyHandle:
        """See Sampler.submit: ``logits`` float32 [R, vocabulary] has all rows of all outputs, and
        is changed in place."""
        outputs = _Outputs.of(plan)
        unknown: Download | None = None
        if self._device_drafts is not None:
            unknown = self._device_drafts.download_drafts(plan.num_rows)
            if plan.sampling_flags & PROCESSORS:  # their histories name drafts
                (previous,) = self._device_drafts.download().read()
                previous = np.maximum(previous, 0)  # as the layers see missing drafts
        rows, drafts = _whole_histories(plan, outputs), self._sampled_drafts(plan, outputs)
        sampling = self._sampler.submit(logits, rows, previous, drafts, masks)
        return VerifyHandle(sampling, outputs, plan.draft_tokens.copy(), unknown)

    def _sampled_drafts(self, plan: HeadPlan, outputs: _Outputs) -> SampledDrafts | None:
        """None if no row of the step is sampled at random, or no draft was sampled."""
        sampling, sampled = self._sampling, self._device_drafts
        if sampling is None or sampled is None or not plan.sampling_flags & RANDOM:
            return None
        no_draft = sampling.upload(outputs.is_last)
        drafts = sampled.drafts[: plan.num_rows].masked_fill(no_draft, -1)
        return SampledDrafts(drafts, sampling.logits, sampling.columns)


class VerifyHandle:
    """The tokens of a step with drafts on their way to the host."""

    def __init__(
        self,
        sampling: SampleHandle,
        outputs: _Outputs,
        drafts: NDArray[np.int32],
        unknown: Download | None,
    ) -> None:
        """``unknown``: the drafts that are -1 in ``drafts``."""
        self._sampling, self._outputs = sampling, outputs
        self._drafts, self._unknown = drafts, unknown

    def read(self) -> Sampled:
        """The tokens, once, with what each output accepted; waits for the device."""
        sampled, outputs = self._sampling.read(), self._outputs
        tokens, drafts = sampled.row_tokens, self._drafts
        if self._unknown is not None:
            (found,) = self._unknown.read()
            drafts = np.where((drafts < 0) & ~outputs.is_last, found, drafts)
        # An error is neither a token nor a draft, and so is -1, an unknown draft.
        wrong = (tokens != drafts) | (tokens < 0)
        before = np.cumsum(wrong) - wrong
        counts = before == before[outputs.first_row]  # all earlier drafts of its output are right
        kept = np.flatnonzero(counts)
        width = int(outputs.place[kept].max()) + 1
        accepted = np.full((outputs.count, width), -1, np.int32)
        accepted[outputs.output[kept], outputs.place[kept]] = tokens[kept]
        logprobs = sampled.logprobs
        if logprobs is not None:
            chosen = np.flatnonzero(counts[logprobs.places])
            rows = logprobs.places[chosen]
            places = (outputs.output[rows] * width + outputs.place[rows]).astype(np.int32)
            logprobs = logprobs.of(chosen, places)
        return replace(sampled, accepted=accepted, logprobs=logprobs)


@dataclass(frozen=True)
class _Outputs:
    """For each row [R]: its output, the first row of that output, and its distance from that row.
    ``count`` is the number of outputs O."""

    count: int
    output: NDArray[np.int64]
    first_row: NDArray[np.int64]
    place: NDArray[np.int64]

    @property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether no draft follows the row, bool [R]."""
        return np.append(self.first_row[1:] != self.first_row[:-1], True)

    @classmethod
    def of(cls, plan: HeadPlan) -> _Outputs:
        count = plan.num_outputs
        row_cu = plan.row_cu.astype(np.int64)
        output = np.repeat(np.arange(count), np.diff(row_cu))
        first_row = row_cu[output]
        return cls(count, output, first_row, np.arange(plan.num_rows) - first_row)


def _whole_histories(plan: HeadPlan, outputs: _Outputs) -> SamplingRows:
    """The plan has the history of an output once, then its drafts: row r sees those before it.

    Here each row's history is whole, and they follow one another."""
    history_cu = plan.history_cu.astype(np.int64)
    starts = history_cu[outputs.first_row]
    ends = np.cumsum(history_cu[1:] - starts)
    cu = np.concatenate([np.zeros(1, np.int64), ends])
    tokens = np.arange(cu[-1]) + np.repeat(starts - cu[:-1], np.diff(cu))
    return SamplingRows(
        num_rows=plan.num_rows,
        sampling_flags=plan.sampling_flags,
        row_ids=plan.row_ids,
        row_slots=plan.row_slots,
        row_steps=plan.row_steps,
        history_tokens=plan.history_tokens[tokens],
        history_cu=cu.astype(np.int32),
    )

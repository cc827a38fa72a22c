"""Drafts of a draft model, which goes on from tokens and needs nothing of the model's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.worker.correction import slots_at
from rtp_llm.worker.speculative.device_drafter import DeviceDrafter

if TYPE_CHECKING:
    from rtp_llm.worker.correction import Correction
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class ModelDrafter(DeviceDrafter):
    """A step goes through it twice, as through a Drafter.

    `draft` comes before the model's layers: from the last token of each sequence the draft model
    decodes as many tokens as the plan has drafts. `extend` comes behind the sampling: the draft
    model computes all tokens of the step, so that it has keys and values wherever the model has
    some: of prompts, and of accepted drafts, of which it never computed the last one.

    A token is at its own position in both models. To compute the next one along with those of its
    step, as draft heads do, would take a slot that the sequence may not have yet, or move all
    tokens by a position and lose the first; so it waits for the next step, at the price of one
    token for each sequence there. Nothing is kept between steps but the cache.
    """

    def __init__(self, runner: ModelRunner, sampled: SampledTokens) -> None:
        assert runner.model.drafts is not None, "the model was loaded without a draft model"
        self._runner, self._sampled, self._model = runner, sampled, runner.model.drafts
        self._ids: Tensor | None = None

    def draft(self, step: DeviceStep) -> None:
        """Find the drafts of the step that is about to be computed."""
        plan = step.plan
        windows = Windows.of(plan)
        if windows is not None:
            self._find(plan, windows)
        # Now: what the step samples will take the place of the tokens that it names.
        self._ids = self._runner.device.upload(plan.token_ids)
        self._sampled.substitute(self._ids)

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        """``hidden`` [T, hidden] of the step's tokens is the model's own business."""
        assert self._ids is not None
        runner = self._runner
        batch = replace(step.batch, token_ids=self._ids)
        runner.model.draft(batch, runner.model.draft_states(hidden))

    def _find(self, plan: StepPlan, windows: Windows) -> None:
        steps = DraftSteps(self._runner, plan, windows, self._sampled.correction, found=0)
        token = self._runner.device.upload(plan.token_ids[windows.tokens])
        self._sampled.substitute(token)
        nothing = token.new_empty(len(token), 0)
        tokens = []
        for batch in steps.batches():
            states = self._runner.model.draft(replace(batch, token_ids=token), nothing)
            token = self._model.tokens(self._model.logits(states).argmax(1)).int()
            tokens.append(token)
        source, target = steps.upload(windows.source), steps.upload(windows.rows)
        found = torch.stack(tokens).flatten().index_select(0, source)
        self._sampled.drafts.index_copy_(0, target, found)


@dataclass(frozen=True)
class Windows:
    """The S sequences that verify drafts: one after another in the plan.

    begin: the first of them; tokens [S], where each one's tokens begin; counts [S] of drafts;
    slots [S]. The drafts, one after another: their rows, and which of [most, S] each of them is.
    """

    begin: int
    tokens: NDArray[np.int64]
    counts: NDArray[np.int64]
    slots: NDArray[np.int64]
    rows: NDArray[np.int64]
    source: NDArray[np.int64]

    @classmethod
    def of(cls, plan: StepPlan) -> Windows | None:
        """None: no sequence verifies drafts."""
        if plan.num_rows == plan.num_outputs:
            return None
        all_counts = np.diff(plan.row_cu).astype(np.int64) - 1
        (outputs,) = np.nonzero(all_counts)
        first, counts = plan.row_cu[outputs].astype(np.int64), all_counts[outputs]
        tokens = plan.logit_rows[first].astype(np.int64)
        begin = int(np.searchsorted(plan.cu_seqlens_q, tokens[0]))
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(
            begin=begin,
            tokens=tokens,
            counts=counts,
            slots=plan.row_slots[first].astype(np.int64),
            rows=np.repeat(first, counts) + number,
            source=number * len(outputs) + np.repeat(np.arange(len(outputs)), counts),
        )


class DraftSteps:
    """The batches of the steps that find drafts one by one: one token of each sequence.

    The first is at the position of the first token of its window, the others follow. A sequence
    that has no more drafts computes another one's place again, and writes nothing.
    """

    def __init__(
        self,
        runner: ModelRunner,
        plan: StepPlan,
        windows: Windows,
        correction: Correction | None,
        found: int = 1,
    ) -> None:
        """``found``: drafts of each sequence that are there before the first step."""
        self._runner = runner
        count, left = len(windows.counts), windows.counts - found
        steps = np.arange(1, int(left.max()) + 1)[:, None]
        known = plan.positions[windows.tokens]  # so many tokens are computed
        self._lens = known + np.minimum(steps, left).astype(np.int32)
        end = windows.begin + count
        self._tables = tuple(
            table[windows.begin : end] if len(table) else table for table in plan.block_table
        )
        self._cu = np.arange(count + 1, dtype=np.int32)
        place = windows.tokens + np.minimum(steps, left + 1) - 1
        written = steps <= left
        slots = [
            np.where(written, mapping[place], np.int32(-1)) if len(mapping) else mapping
            for mapping in plan.slot_mapping
        ]
        uploaded = runner.device.upload_all(
            self._cu, self._lens, self._lens - 1, *self._tables, *slots
        )
        self._numbers, groups = uploaded[:3], len(slots)
        self._uploaded_tables = tuple(uploaded[3 : 3 + groups])
        self._slots = uploaded[3 + groups :]
        self._exact = correction is None
        if correction is not None:
            self._correct(correction.of_sequence[windows.begin : end])

    def _correct(self, shorter: Tensor) -> None:
        """The windows begin so much earlier, int32 [S], than the plan says."""
        cu_seqlens, lens, positions = self._numbers
        positions = positions - shorter
        self._numbers = [cu_seqlens, lens - shorter, positions]
        block_size, sequence = self._runner.cache.block_size, cu_seqlens[:-1]
        self._slots = [
            torch.where(old < 0, old, slots_at(positions, sequence, table, block_size))
            if len(old)
            else old
            for old, table in zip(self._slots, self._uploaded_tables, strict=True)
        ]

    def upload(self, numbers: NDArray[np.int64]) -> Tensor:
        """On the device."""
        return self._runner.device.upload(numbers)

    def batches(self) -> list[ForwardBatch]:
        """One for each step, but for its token ids."""
        cache = self._runner.cache
        cu_seqlens, lens, positions = self._numbers
        return [
            ForwardBatch(
                token_ids=positions[step],
                positions=positions[step],
                cu_seqlens_q=cu_seqlens,
                seq_lens=lens[step],
                max_seqlen_q=1,
                max_seqlen_k=int(host_lens.max()),
                slot_mapping=tuple(each[step] if len(each) else each for each in self._slots),
                block_table=self._uploaded_tables,
                kv_cache=cache.layers,
                layer_group=cache.layer_group,
                host=HostNumbers(self._cu, host_lens, self._tables, self._exact),
            )
            for step, host_lens in enumerate(self._lens)
        ]

"""Drafts that the device makes, step by step: by the model's draft head."""

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
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class Drafter(DeviceDrafter):
    """A step goes through it twice.

    `draft` comes before the model's layers: it finds the drafts that the plan names and does not
    know. `extend` comes behind the sampling: with the tokens that are right now and the model's own
    hidden states it computes the keys and values of the draft head again, and what the next step
    begins with: the first draft of each sequence, and the state that it came from. Both stay on the
    device, under the sequence's slot.
    """

    def __init__(
        self, runner: ModelRunner, sampled: SampledTokens, num_slots: int, dtype: torch.dtype
    ) -> None:
        """``dtype`` of hidden states."""
        assert runner.model.drafts is not None, "the model was loaded without a draft head"
        place = runner.device.torch_device
        self._runner, self._sampled, self._head = runner, sampled, runner.model.drafts
        self._first = torch.zeros(num_slots, dtype=torch.int32, device=place)
        self._states = torch.zeros(num_slots, self._head.width, dtype=dtype, device=place)

    def draft(self, plan: StepPlan) -> None:
        """Find the drafts of the step that is about to be computed."""
        windows = Windows.of(plan)
        if windows is None:
            return
        steps = DraftSteps(self._runner, plan, windows, self._sampled.correction)
        slots = steps.upload(windows.slots)
        token = self._first.index_select(0, slots)
        states = self._states.index_select(0, slots)
        tokens = [token]
        for batch in steps.batches():
            states = self._runner.model.draft(replace(batch, token_ids=token), states)
            token = self._best(states)
            tokens.append(token)
        source, target = steps.upload(windows.source), steps.upload(windows.rows)
        found = torch.stack(tokens).flatten().index_select(0, source)
        self._sampled.drafts.index_copy_(0, target, found)

    def extend(self, plan: StepPlan, hidden: Tensor) -> None:
        """``hidden`` [T, hidden] of the step's tokens, whose rows have been sampled."""
        runner, device = self._runner, self._runner.device
        ids = device.upload(_following(plan))
        self._sampled.substitute(ids)
        batch = replace(runner.forward_batch(plan), token_ids=ids)
        states = runner.model.draft(batch, runner.model.draft_states(hidden))
        if not plan.num_outputs:
            return
        slots, tokens = device.upload_all(
            plan.row_slots[plan.row_cu[:-1]].astype(np.int64), plan.logit_rows.astype(np.int64)
        )
        if plan.num_outputs < plan.num_rows:
            assert self._sampled.last_right_rows is not None, "the drafts were verified"
            tokens = tokens.index_select(0, self._sampled.last_right_rows)
        states = states.index_select(0, tokens)
        self._states.index_copy_(0, slots, states)
        self._first.index_copy_(0, slots, self._best(states))

    def _best(self, states: Tensor) -> Tensor:
        """Token ids int32 [R]: the most likely ones."""
        return self._head.tokens(self._head.logits(states).argmax(1)).int()


def _following(plan: StepPlan) -> NDArray[np.int32]:
    """For each token the one behind it, int32 [T]: known, or the name of the row that samples it.

    Behind a draft that was wrong comes what was sampled there: nobody reads what that gives.
    """
    ids = np.empty(plan.num_tokens, np.int32)
    ids[:-1] = plan.token_ids[1:]
    ids[plan.cu_seqlens_q[1:] - 1] = plan.next_tokens
    ids[plan.logit_rows] = -1 - np.arange(plan.num_rows)
    return ids


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

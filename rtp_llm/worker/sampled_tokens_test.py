# SPDX-License-Identifier: Apache-2.0
"""Tests of the tokens that stay on the device between steps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from rtp_llm.attention.batch import HostNumbers
from rtp_llm.device import resolve_device
from rtp_llm.worker.device_step import DeviceStep
from rtp_llm.worker.sampled_tokens import SampledTokens


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_ids_name_rows_of_the_last_step_only():
    sampled = SampledTokens(4, resolve_device("cpu"))
    sampled.keep(int32(50, 60, 70))
    ids = int32(5, -1, -3, 0, -2)
    sampled.substitute(ids)
    assert ids.tolist() == [5, 50, 70, 0, 60]
    sampled.keep(int32(80))
    ids = int32(-1)
    sampled.substitute(ids)
    assert ids.tolist() == [80]


def test_a_step_without_rows_leaves_them():
    sampled = SampledTokens(2, resolve_device("cpu"))
    sampled.keep(int32(9, 8))
    sampled.keep(int32())
    ids = int32(-2, -1)
    sampled.substitute(ids)
    assert ids.tolist() == [8, 9]


def test_what_is_kept_does_not_change_with_its_source():
    sampled = SampledTokens(2, resolve_device("cpu"))
    tokens = int32(1, 2)
    sampled.keep(tokens)
    tokens += 10
    ids = int32(-1, -2)
    sampled.substitute(ids)
    assert ids.tolist() == [1, 2]


@dataclass
class SimpleBatch:
    """What a correction reads of a ForwardBatch."""

    positions: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    slot_mapping: tuple[torch.Tensor, ...]
    block_table: tuple[torch.Tensor, ...]
    host: HostNumbers


def step(*, tokens: list[list[int]], rows: list[int]) -> Any:
    """The plan of a step: token ids of its sequences, each of which has so many rows at its end."""
    counts = [len(ids) for ids in tokens]
    ends = np.cumsum(counts)
    logit_rows = [end - n + i for end, n in zip(ends, rows, strict=True) for i in range(n)]
    return SimpleNamespace(
        num_seqs=len(tokens),
        num_tokens=int(ends[-1]),
        num_outputs=sum(n > 0 for n in rows),
        num_rows=sum(rows),
        token_ids=np.array([each for ids in tokens for each in ids], np.int32),
        cu_seqlens_q=np.concatenate([[0], ends]).astype(np.int32),
        row_cu=np.concatenate([[0], np.cumsum([n for n in rows if n])]).astype(np.int32),
        logit_rows=np.array(logit_rows, np.int32),
    )


def begun(plan: Any) -> Any:
    """A step of the plan, on the device."""
    return DeviceStep(
        plan,
        resolve_device("cpu"),
        lambda: SimpleNamespace(cu_seqlens_q=torch.tensor(plan.cu_seqlens_q)),
    )


def test_the_next_plan_is_corrected_by_the_drafts_that_were_rejected():
    sampled = SampledTokens(16, resolve_device("cpu"), optimistic=True)
    plan = step(tokens=[[1], [2, 0, 0, 0], [3, 0, 0], [4, 0]], rows=[1, 4, 3, 2])
    sampled.begin(plan)
    assert sampled.correction is None
    sampled.keep(int32(10, 20, 21, 22, 23, 30, 31, 32, 40, 41))
    #  drafts that follow the rows: none; 20 and 99 and 22; 30 and 31; 99
    sampled.drafts[:10] = int32(5, 20, 99, 22, 5, 30, 31, 5, 99, 5)
    sampled.verify(begun(plan))
    assert sampled.last_right_rows is not None
    assert sampled.last_right_rows.tolist() == [0, 2, 7, 8]
    ids = int32(-1, -5, -8, -10)
    sampled.substitute(ids)
    assert ids.tolist() == [10, 21, 32, 40], "under the last row of each output"
    # One decodes on, two verify, a prompt is new; those of rows 0 and 7 have the length they say.
    plan = step(tokens=[[-5], [-1], [-10, 0], [-8, 0, 0], [7, 8, 9]], rows=[1, 1, 2, 3, 0])
    sampled.begin(plan)
    correction = sampled.correction
    assert correction is not None
    assert correction.rejected[correction.of_sequence].tolist() == [2, 0, 1, 0, 0]
    assert correction.rejected[correction.of_row].tolist() == [2, 0, 1, 1, 0, 0, 0]
    before = np.array([30, 40, 50, 50, 60, 60, 60, 0, 1, 2], np.int32)  # all of one block
    lens = np.array([31, 41, 51, 61, 3], np.int32)
    batch = SimpleBatch(
        positions=torch.tensor(before),
        seq_lens=torch.tensor(lens),
        cu_seqlens_q=torch.tensor(plan.cu_seqlens_q),
        slot_mapping=(torch.tensor(before), int32()),
        block_table=(torch.zeros(5, 1, dtype=torch.int32), int32()),
        host=HostNumbers(plan.cu_seqlens_q, lens, ()),
    )
    right: Any = correction.apply(cast(Any, batch), torch.tensor(correction.of_sequence), 64)
    assert (lens - right.seq_lens.numpy()).tolist() == [2, 0, 1, 0, 0]
    assert (before - right.positions.numpy()).tolist() == [2, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert torch.equal(right.slot_mapping[0], right.positions)
    assert len(right.slot_mapping[1]) == 0
    assert not right.host.exact
    assert batch.positions.tolist() == before.tolist(), "which may be the plan's own array"


def test_what_the_last_token_that_counts_was_computed_from_has_a_name():
    sampled = SampledTokens(16, resolve_device("cpu"), optimistic=True)
    for prompt in ([], [6, 7, 8, 9]):  # rows are tokens, or not
        rows = [4, 3, 1] if prompt else [4, 3]
        tokens = [[2, 20, 99, 22], [3, 30, 31], *([prompt] if prompt else [])]
        plan = step(tokens=tokens, rows=rows)
        sampled.begin(plan)
        sampled.keep(int32(20, 21, 22, 23, 30, 31, 32, *prompt[:1]))
        sampled.drafts[:8] = int32(20, 99, 22, 5, 30, 31, 5, 5)
        verified = begun(plan)
        sampled.verify(verified)
        sampled.keep_computed(verified, torch.from_numpy(plan.token_ids))
        names = sampled.named_by_next(np.array([5, -4, -7, 0], np.int32))
        ids = torch.from_numpy(names)
        sampled.substitute(ids)
        assert ids.tolist() == [5, 20, 31, 0], "20, before 21 in place of 99; all of the second"


def test_a_step_without_drafts_corrects_nothing_of_the_next():
    sampled = SampledTokens(4, resolve_device("cpu"), optimistic=True)
    plan = step(tokens=[[1, 0]], rows=[2])
    sampled.keep(int32(5, 6))
    sampled.drafts[0] = 9
    sampled.verify(begun(plan))
    plan = step(tokens=[[-2]], rows=[1])
    sampled.begin(plan)
    assert sampled.correction is not None
    sampled.keep(int32(7))
    sampled.verify(begun(plan))
    sampled.begin(step(tokens=[[-1]], rows=[1]))
    assert sampled.correction is None


def test_plans_of_known_lengths_are_not_corrected():
    sampled = SampledTokens(4, resolve_device("cpu"))
    plan = step(tokens=[[1, 0]], rows=[2])
    sampled.keep(int32(5, 6))
    sampled.drafts[0] = 9
    sampled.verify(begun(plan))
    assert sampled.last_right_rows is not None
    assert sampled.last_right_rows.tolist() == [0]
    sampled.begin(step(tokens=[[-2]], rows=[1]))
    assert sampled.correction is None
    assert sampled.tokens(2).tolist() == [5, 6]

# SPDX-License-Identifier: Apache-2.0
"""What follows rejected drafts, against the references and by hand."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.speculative.accept_reference import (
    accept_drafts_reference,
    correct_positions_reference,
)
from rtp_llm.testing.operator_checks import ISAS, kernel_runs, running


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def bounds_of(counts: list[int]) -> Tensor:
    return int32([sum(counts[:end]) for end in range(len(counts) + 1)])


class Accepted(NamedTuple):
    last: Tensor
    tokens: Tensor
    rejected: Tensor


def accept(tokens: Tensor, drafts: Tensor, cu_rows: Tensor, *, keep: bool = True) -> Accepted:
    """By the kernel, which gives what the reference gives."""
    results = []
    for function in (ops.accept_drafts, accept_drafts_reference):
        told, rejected = tokens.clone(), torch.full((len(tokens) + 2,), 77, dtype=torch.int32)
        last = function(told, rejected, drafts, cu_rows, keep)
        results.append(Accepted(last, told, rejected))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == torch.int32
        assert torch.equal(actual, expected)
    return results[0]


def test_the_first_row_whose_token_is_not_its_draft_counts_last() -> None:
    #  no draft; the second of three is wrong; two are right; one is wrong
    tokens = int32([10, 20, 21, 22, 23, 30, 31, 32, 40, 41])
    drafts = int32([5, 20, 99, 22, 5, 30, 31, 5, 99, 41])
    with kernel_runs("accept_drafts"):
        found = accept(tokens, drafts, int32([0, 1, 5, 8, 10]))
    assert found.last.tolist() == [0, 2, 7, 8]
    assert found.tokens.tolist() == [10, 20, 21, 22, 21, 30, 31, 32, 40, 40]
    assert found.rejected.tolist() == [0, 77, 77, 77, 2, 77, 77, 0, 77, 1, 77, 77]


def test_nothing_is_kept_unless_asked_for() -> None:
    tokens = int32([1, 2, 3])
    found = accept(tokens, int32([9, 9, 9]), int32([0, 3]), keep=False)
    assert found.last.tolist() == [0]
    assert torch.equal(found.tokens, tokens)
    assert found.rejected.tolist() == [77] * 5


def test_an_output_without_rows_has_the_row_before_it() -> None:
    """As the padding of captured steps."""
    found = accept(int32([1, 2, 3]), int32([1, 2, 3]), int32([0, 0, 3, 3, 3]))
    assert found.last.tolist() == [0, 2, 2, 2]
    assert found.rejected.tolist() == [77, 77, 0, 77, 77]
    assert accept(int32([]), int32([]), int32([0])).last.tolist() == []
    assert accept(int32([]), int32([]), int32([0, 0])).last.tolist() == [0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", [1, 3, 64, 301])
@pytest.mark.parametrize("longest", [1, 4, 9, 70])
def test_accepted_drafts_equal_the_reference(isa: str, outputs: int, longest: int) -> None:
    source = random.Random(f"{outputs} {longest}")
    counts = [source.randint(0, longest) for _ in range(outputs)]
    rows = sum(counts)
    tokens = int32([source.randrange(4) for _ in range(rows)])
    drafts = int32(
        [each if source.random() < 0.8 else source.randrange(4) for each in tokens.tolist()]
    )
    with running(isa):
        accept(tokens, drafts, bounds_of(counts))


class Plan(NamedTuple):
    """What is corrected, and by what."""

    positions: Tensor
    seq_lens: Tensor
    slots: Tensor
    tables: Tensor
    cu_seqlens_q: Tensor
    rejected: Tensor
    rows: Tensor


def plan_of(lengths: list[int], counts: list[int], rows: list[int], rejected: list[int]) -> Plan:
    """Sequences of `lengths`, whose last `counts` tokens are new, in two groups of blocks of 4."""
    width = -(-max(lengths, default=0) // 4) + 1
    blocks = torch.randperm(2 * len(lengths) * width).int().reshape(2, len(lengths), width)
    positions = [
        n - count + i for n, count in zip(lengths, counts, strict=True) for i in range(count)
    ]
    sequence = [b for b, count in enumerate(counts) for _ in range(count)]
    slots = [
        [int(blocks[g, b, p // 4]) * 4 + p % 4 for b, p in zip(sequence, positions, strict=True)]
        for g in range(2)
    ]
    # With gaps after rows, as in a graph's inputs.
    wide = torch.full((2, len(positions) + 3), -7, dtype=torch.int32)
    wide[:, : len(positions)] = int32(slots[0] + slots[1]).reshape(2, -1)
    tables = torch.full((2, len(lengths) + 1, width + 2), 10**6, dtype=torch.int32)
    tables[:, : len(lengths), :width] = blocks
    return Plan(
        int32(positions),
        int32(lengths),
        wide[:, : len(positions)],
        tables[:, : len(lengths), :width],
        bounds_of(counts),
        int32(rejected),
        int32(rows),
    )


def correct(plan: Plan) -> Plan:
    """By the kernel, which gives what the reference gives."""
    results = []
    for function in (ops.correct_positions, correct_positions_reference):
        mine = plan._replace(
            positions=plan.positions.clone(),
            seq_lens=plan.seq_lens.clone(),
            slots=plan.slots.clone(),
        )
        function(*mine, 4)
        results.append(mine)
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)
    return results[0]


def test_sequences_are_as_much_shorter_as_drafts_were_rejected() -> None:
    #  one decodes, a prompt that names no row, two that verify; row 4 is "no row"
    plan = plan_of([10, 3, 9, 6], [1, 3, 2, 4], [2, 4, 0, 1], [3, 0, 2, 5, 0])
    with kernel_runs("correct_positions"):
        right = correct(plan)
    assert right.seq_lens.tolist() == [8, 3, 6, 6]
    assert right.positions.tolist() == [7, 0, 1, 2, 4, 5, 2, 3, 4, 5]
    for group in range(2):
        tables = plan.tables[group]
        expected = [int(tables[0, 1]) * 4 + 3, int(tables[2, 1]) * 4, int(tables[2, 1]) * 4 + 1]
        assert right.slots[group, [0, 4, 5]].tolist() == expected
    others = [1, 2, 3, 6, 7, 8, 9]
    assert torch.equal(right.slots[:, others], plan.slots[:, others])


def test_tokens_that_are_not_written_stay_so() -> None:
    plan = plan_of([9, 9], [2, 2], [0, 1], [1, 2])
    plan.slots[1, 1] = -1
    right = correct(plan)
    assert right.slots[1, 1] == -1
    assert (right.slots[0] >= 0).all()


def test_rows_that_are_not_there_shorten_nothing() -> None:
    plan = plan_of([9, 9, 9], [2, 1, 2], [-1, 2, 2**31 - 1], [1, 2])
    right = correct(plan)
    for actual, expected in zip(right, plan, strict=True):
        assert torch.equal(actual, expected)


def test_a_position_without_a_block_has_no_slot() -> None:
    plan = plan_of([9, 9], [2, 2], [0, 1], [8, 1])
    right = correct(plan)
    assert right.positions.tolist() == [-1, 0, 6, 7]
    assert right.slots[:, 0].tolist() == [-1, -1]
    assert (right.slots[:, 1:] >= 0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_corrected_positions_equal_the_reference(isa: str, count: int) -> None:
    torch.manual_seed(count)
    source = random.Random(count)
    lengths = [source.randint(10, 60) for _ in range(count)]
    counts = [source.choice((0, 1, 4, 9)) for _ in range(count)]
    if count:
        lengths[0], counts[0] = 400, 390  # a part of a prompt
    rejected = [source.choice((0, 0, 1, 7)) for _ in range(20)]
    plan = plan_of(lengths, counts, [source.randint(-1, 21) for _ in range(count)], rejected)
    with running(isa):
        correct(plan)


def test_wrong_arguments_are_named() -> None:
    rows, cu = int32([1, 2, 3]), int32([0, 1, 3])
    with pytest.raises(RuntimeError, match=r"accept_drafts: tokens is int64 \[3\]; expected int32"):
        ops.accept_drafts(rows.long(), rows, rows, cu, True)
    with pytest.raises(RuntimeError, match=r"accept_drafts: drafts is int32 \[2\]; expected shape"):
        ops.accept_drafts(rows, rows, rows[:2], cu, True)
    with pytest.raises(RuntimeError, match=r"rejected is int32 \[2\]; expected at least 3 numbers"):
        ops.accept_drafts(rows, rows[:2], rows, cu, True)
    with pytest.raises(RuntimeError, match=r"cu_rows is int32 \[0\]; expected at least one"):
        ops.accept_drafts(rows, rows, rows, cu[:0], True)
    plan = plan_of([9, 9], [2, 2], [0, 1], [1, 2])
    with pytest.raises(RuntimeError, match=r"correct_positions: rows is int32 \[1\]; expected"):
        ops.correct_positions(*plan._replace(rows=plan.rows[:1]), 4)
    with pytest.raises(RuntimeError, match=r"slots is int32 \[2, 3\]; expected shape \[2, 4\]"):
        ops.correct_positions(*plan._replace(slots=plan.slots[:, :3]), 4)
    with pytest.raises(RuntimeError, match=r"block_tables is int32 \[1, 2, \d\]; expected shape"):
        ops.correct_positions(*plan._replace(tables=plan.tables[:1]), 4)
    with pytest.raises(RuntimeError, match="blocks of 0 tokens; expected 1 to"):
        ops.correct_positions(*plan, 0)


def test_both_are_traceable() -> None:
    checks = ("test_schema", "test_faketensor")
    rows = int32([1, 2, 3])
    given = (rows, torch.zeros(3, dtype=torch.int32), rows.clone(), int32([0, 1, 3]), True)
    torch.library.opcheck(torch.ops.rtp_llm.accept_drafts.default, given, test_utils=checks)
    plan = (*plan_of([9, 9], [2, 2], [0, 1], [1, 2]), 4)
    torch.library.opcheck(torch.ops.rtp_llm.correct_positions.default, plan, test_utils=checks)

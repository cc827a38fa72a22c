# SPDX-License-Identifier: Apache-2.0
"""Bit masks of tokens: what they leave out becomes -inf, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.sampling_reference import apply_token_bitmask_reference
from rtp_llm.testing.operator_checks import cpu_only, kernel_runs


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def masks_for(count: int, vocab: int) -> Tensor:
    """Random words, among them whole ones of both kinds."""
    shape = (count, -(-vocab // 32))
    words = torch.randint(-(2**31), 2**31, shape).int()
    words[torch.rand(shape) < 0.2] = 0
    words[torch.rand(shape) < 0.2] = -1
    return words


@pytest.mark.parametrize("vocab", [1, 2, 31, 32, 33, 1000, 4097, 20001])
@pytest.mark.parametrize("rows", [[], [2], [5, 0, 3], [1, 2, 3, 4, 5, 0]])
def test_masked_logits_equal_the_reference(vocab: int, rows: list[int]) -> None:
    logits, index = torch.randn(6, vocab), torch.tensor(rows, dtype=torch.int32)
    masks, expected = masks_for(len(rows), vocab), logits.clone()
    apply_token_bitmask_reference(expected, masks, index)
    with kernel_runs("apply_token_bitmask"):
        ops.apply_token_bitmask(logits, masks, index)
    assert torch.equal(logits, expected)


def test_bits_are_tokens_from_the_lowest_on() -> None:
    logits = torch.zeros(2, 70)
    words = [1 << 3, -(2**31), 1 | 1 << 5]
    masks = torch.tensor([words], dtype=torch.int32)
    ops.apply_token_bitmask(logits, masks, torch.tensor([1], dtype=torch.int32))
    assert logits[1].isfinite().nonzero().flatten().tolist() == [3, 63, 64, 69]
    assert not logits[0].any()


def test_strided_rows_and_what_lies_between_them() -> None:
    wide = torch.zeros(4, 50)
    logits, masks = wide[:, :37], torch.zeros(2, 2, dtype=torch.int32)
    ops.apply_token_bitmask(logits, masks, torch.tensor([0, 3], dtype=torch.int32))
    assert wide.isinf().sum(1).tolist() == [37, 0, 0, 37]
    assert not wide[:, 37:].any()


def test_meta_function_takes_the_same() -> None:
    masks, rows = torch.zeros(2, 3).int(), torch.zeros(2).int()
    ops.apply_token_bitmask(*(each.to("meta") for each in (torch.zeros(4, 90), masks, rows)))


def test_wrong_arguments_are_named() -> None:
    logits, rows = torch.zeros(2, 40), torch.zeros(1).int()
    with pytest.raises(RuntimeError, match="apply_token_bitmask: masks"):
        ops.apply_token_bitmask(logits, torch.zeros(1, 1).int(), rows)
    with pytest.raises(RuntimeError, match="apply_token_bitmask: masks"):
        ops.apply_token_bitmask(logits, torch.zeros(1, 2).long(), rows)
    with pytest.raises(RuntimeError, match="apply_token_bitmask: rows"):
        ops.apply_token_bitmask(logits, torch.zeros(1, 2).int(), rows.long())
    with pytest.raises(RuntimeError, match="apply_token_bitmask: logits"):
        ops.apply_token_bitmask(logits.double(), torch.zeros(1, 2).int(), rows)


@cpu_only
def test_a_row_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"apply_token_bitmask: rows\[1\] is 2 of 2 rows"):
        masks, rows = torch.zeros(2, 1).int(), torch.tensor([0, 2]).int()
        ops.apply_token_bitmask(torch.zeros(2, 9), masks, rows)

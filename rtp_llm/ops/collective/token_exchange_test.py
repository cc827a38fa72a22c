# SPDX-License-Identifier: Apache-2.0
"""The references of the way of tokens to their experts' ranks and back, on any device."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.ops.collective.token_exchange import message_bytes
from rtp_llm.ops.collective.token_exchange_reference import (
    Tokens,
    combine_tokens_reference,
    dispatch_tokens_reference,
    sums_of,
    tokens_for,
)

SLOTS = 2  # of each rank


def _tokens(first: float, ids: list[list[int]]) -> Tokens:
    x = torch.arange(len(ids)).float()[:, None].expand(-1, 4) + first
    return x, torch.tensor(ids, dtype=torch.int32), torch.full((len(ids), 2), 0.5)


def test_a_rank_gets_the_tokens_that_chose_its_experts_where_their_rank_had_them() -> None:
    ranks = [_tokens(1, [[0, 3], [1, 0], [-1, -1]]), _tokens(10, [[2, 9]])]
    x, ids, weights = tokens_for(1, ranks, SLOTS, 3)
    assert x[:, 0].tolist() == [1, 0, 0, 10, 0, 0]
    assert ids.tolist() == [[-1, 1], [-1, -1], [-1, -1], [0, -1], [-1, -1], [-1, -1]]
    assert weights[:, 0].tolist() == [0.5, 0.5, 0.5, 0.5, 0, 0]


def test_results_are_added_in_the_order_of_ranks_and_rounded_once() -> None:
    numbers = (1.0, 2.0**-8, 2.0**-8)  # in bfloat16 1 + 2**-8 is 1 again
    results = [torch.full((6, 1), number).bfloat16() for number in numbers]
    ids = torch.tensor([[0, 2, 4], [4, 2, -1]], dtype=torch.int32)
    assert sums_of(1, results, ids, SLOTS).tolist() == [[1 + 2.0**-7], [2.0**-7]]
    none = torch.full((2, 3), -1, dtype=torch.int32)
    assert sums_of(1, results, none, SLOTS).tolist() == [[0.0], [0.0]]


def test_what_a_row_without_an_expert_has_does_not_matter() -> None:
    results = [torch.full((2, 1), value) for value in (1.0, float("nan"))]
    ids = torch.tensor([[0]], dtype=torch.int32)
    assert sums_of(0, results, ids, SLOTS).tolist() == [[1.0]]


def test_one_rank_gets_its_own_back() -> None:
    alone, (x, ids, weights) = torch.zeros(2, dtype=torch.int64), _tokens(1, [[0, 1], [-1, 1]])
    among = (alone, alone, 0, 1024)
    there = dispatch_tokens_reference(x, ids, weights, SLOTS, 3, *among)
    assert torch.equal(there[0][:2], x) and torch.equal(there[1][:2], ids)
    assert (there[1][2:] == -1).all()
    assert torch.equal(combine_tokens_reference(there[0], there[1], ids, SLOTS, *among), x)
    with pytest.raises(RuntimeError, match="of one rank, not of 2"):
        combine_tokens_reference(x, ids, ids, SLOTS, torch.zeros(3), alone, 0, 1024)


def test_a_message_has_room_for_the_choices_in_whole_packs() -> None:
    assert message_bytes(3, 8, torch.bfloat16, 4) == 3 * (16 + 2 * 16) + 16
    assert message_bytes(3, 8, torch.float32, 5) == 3 * (32 + 2 * 32) + 16

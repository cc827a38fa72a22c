# SPDX-License-Identifier: Apache-2.0
"""Tests of dispatch and combine: several ranks give what one rank gives."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.distributed.dispatch import CapacityError, LowLatencyAllToAll
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.testing.distributed.all_to_all import (
    CASES,
    HIDDEN,
    TOLERANCE,
    tokens_of,
    worst_errors,
)
from rtp_llm.testing.ranks import run_ranks


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_give_what_one_gives(tmp_path, size):
    for worst in run_ranks(tmp_path, size, worst_errors, CASES[size]):
        assert isinstance(worst, list), worst
        assert len(worst) == 3 * len(CASES[size])
        for error, dtype in worst:
            assert error <= TOLERANCE[dtype]


def test_more_tokens_than_agreed_are_an_error():
    class Two:
        rank, size = 1, 2

    mode = LowLatencyAllToAll(Two(), 6, 4)
    with pytest.raises(CapacityError, match=r"rank 1 has 5 tokens .* capacity of 4"):
        mode.dispatch(tokens_of(0, 5, 2, torch.float32, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_survive_packing(dtype):
    for count, k in [(0, 3), (1, 3), (5, 3), (0, 1), (1, 1), (4, 1)]:
        made = tokens_of(0, count, k, dtype, 2)
        # As operators give them: of no row and one choice, ids + 1 has a last stride of 0.
        ids = torch.empty(count, k, dtype=torch.int32).copy_(made.ids)
        rows = TokenRows(made.x, ids, made.weights)
        back = TokenRows.unpack(rows.pack(), HIDDEN, dtype, k)
        for name in ("x", "ids", "weights"):
            assert torch.equal(getattr(back, name), getattr(rows, name))
    empty = TokenRows.unpack(
        torch.zeros(2, HIDDEN * dtype.itemsize + 24, dtype=torch.uint8), HIDDEN, dtype, 3
    )
    assert (empty.ids == -1).all() and not empty.x.any() and not empty.weights.any()

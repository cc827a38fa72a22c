# SPDX-License-Identifier: Apache-2.0
"""Ranks get their own heads, whatever the sizes of both workers are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rtp_llm.disagg.decode.head_sources import Held, head_rows, sources

TOKENS, SIZE = 3, 2  # of a block; numbers of a head
SIZES = (1, 2, 3, 4, 6, 8, 12)


def held(whole: int, ranks: int) -> Held:
    return Held(whole, max(1, whole // ranks), ranks)


def fits(whole: int, ranks: int) -> bool:
    return whole % ranks == 0 or ranks % whole == 0


@pytest.mark.parametrize("whole", [1, 2, 4, 6, 12])
def test_every_rank_gets_its_heads(whole: int) -> None:
    pairs = [pair for pair in itertools.product(SIZES, SIZES) if all(fits(whole, n) for n in pair)]
    numbers = np.arange(TOKENS * whole * SIZE).reshape(TOKENS, whole, SIZE)
    for theirs, ours in pairs:
        there, here = held(whole, theirs), held(whole, ours)
        for rank in range(ours):
            first = rank * whole // ours
            block = np.full((TOKENS, here.count, SIZE), -1)
            for source in sources(rank, here, there):
                begin = source.rank * whole // theirs
                stored = numbers[:, begin : begin + there.count].reshape(TOKENS, -1)
                count, index = source.theirs
                part = stored.reshape(TOKENS, count, -1)[:, index]
                count, index = source.ours
                block.reshape(TOKENS, count, -1)[:, index] = part
            assert np.array_equal(block, numbers[:, first : first + here.count]), (theirs, ours)


def test_what_every_rank_has_comes_from_any_of_them() -> None:
    whole = Held(4, 4, 3)
    assert [each.rank for rank in range(6) for each in sources(rank, Held(4, 4, 6), whole)] == [
        *(0, 1, 2),
        *(0, 1, 2),
    ]


def test_replicas_share_the_work() -> None:
    """Two ranks have each of two heads: four ranks fetch from all four."""
    found = [sources(rank, held(2, 4), held(2, 4)) for rank in range(4)]
    assert sorted(each.rank for (each,) in found) == [0, 1, 2, 3]


def test_rows_of_heads_lie_in_the_rows_of_tokens() -> None:
    memory = np.arange(2 * TOKENS * 4 * SIZE, dtype=np.int64).reshape(2, TOKENS, 4, SIZE)
    block = memory[0].nbytes
    base = memory.ctypes.data
    rows = np.array([[0, n, 7, base + n * block, 1, block, block] for n in range(2)])
    cut = head_rows(rows, TOKENS, 2, 1)
    assert cut[:, :3].tolist() == rows[:, :3].tolist()
    assert cut[:, 4:].tolist() == [[TOKENS, 2 * SIZE * 8, 4 * SIZE * 8]] * 2
    assert ((cut[:, 3] - base) // 8).tolist() == [memory[n, 0, 2, 0] for n in range(2)]

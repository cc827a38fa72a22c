# SPDX-License-Identifier: Apache-2.0
"""Tests of pairs by slot."""

from __future__ import annotations

import random

import numpy as np

from rtp_llm.worker.heads.ragged_table import RaggedTable


def test_gathering_equals_a_loop_over_the_slots():
    chance = random.Random(3)
    table = RaggedTable(20)
    lists: dict[int, list[tuple[int, float]]] = {slot: [] for slot in range(20)}
    for _ in range(200):
        slot = chance.randrange(20)
        size = chance.choice((0, 1, 3, 8, 9, 40))
        lists[slot] = [(chance.randrange(99), chance.random()) for _ in range(size)]
        table.put(slot, [i for i, _ in lists[slot]], [v for _, v in lists[slot]])
        slots = chance.sample(range(20), chance.randrange(6))
        rows = [chance.randrange(9) for _ in slots]
        pairs = table.gather(np.array(slots, np.int32), np.array(rows, np.int32))
        expected = [
            (row, token, np.float32(value))
            for row, each in zip(rows, slots, strict=True)
            for token, value in lists[each]
        ]
        assert list(zip(*(column.tolist() for column in pairs), strict=True)) == expected
        assert [column.dtype for column in pairs] == [np.int32, np.int32, np.float32]


def test_an_unused_table_has_no_pairs_and_no_width():
    table = RaggedTable(1280)
    assert len(table.gather(np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32)).rows) == 0
    assert table._ids.nbytes == 0

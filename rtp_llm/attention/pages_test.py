# SPDX-License-Identifier: Apache-2.0
"""Tests of the pages that a step sees, against the keys that each query may see."""

from __future__ import annotations

import numpy as np
import pytest

from rtp_llm.attention import HostNumbers
from rtp_llm.attention.pages import list_pages


def random_step(seed: int, block_size: int, window: int):
    """Lengths, and a table whose blocks outside of the window are gone (-1)."""
    draw = np.random.default_rng(seed)
    sequences = int(draw.integers(1, 9))
    keys = draw.integers(1, 200, sequences).astype(np.int32)
    queries = np.minimum(keys, draw.choice([1, 1, 7, 64, 200], sequences)).astype(np.int32)
    width = -(-int(keys.max()) // block_size) + int(draw.integers(0, 3))
    table = draw.permutation(sequences * width).astype(np.int32).reshape(sequences, width)
    for row, (new, length) in enumerate(zip(queries, keys, strict=True)):
        table[row, -(-length // block_size) :] = -1
        if window:
            table[row, : max(0, length - new - window + 1) // block_size] = -1
    cu_seqlens = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return queries, keys, HostNumbers(cu_seqlens, keys, (np.full_like(table, -1), table))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("block_size", "window"), [(16, 0), (16, 33), (1, 0), (64, 5), (8, 1000)])
def test_each_query_sees_its_keys(seed: int, block_size: int, window: int) -> None:
    queries, keys, host = random_step(seed, block_size, window)
    pages = list_pages(host, 1, block_size, window)
    assert pages.ends[0] == 0 and pages.ends[-1] == len(pages.blocks)
    assert (pages.blocks >= 0).all()
    for array in (pages.queries, pages.ends, pages.blocks, pages.last):
        assert array.dtype == np.int32
    for row, (new, length) in enumerate(zip(queries, keys, strict=True)):
        blocks = pages.blocks[pages.ends[row] : pages.ends[row + 1]]
        assert list(blocks) == list(host.block_table[1][row][pages.first[row] :][: len(blocks)])
        there = (len(blocks) - 1) * block_size + pages.last[row]
        slots = np.repeat(blocks, block_size) * block_size + np.tile(
            np.arange(block_size), len(blocks)
        )
        for query in range(new):
            # Masks count from the end of the keys; `window - 1` before a query's own are seen.
            last = there - new + query
            first = max(0, last - (window - 1)) if window else 0
            position = length - new + query
            wanted = range(max(0, position - window + 1) if window else 0, position + 1)
            table = host.block_table[1][row]
            assert slots[first : last + 1].tolist() == [
                table[key // block_size] * block_size + key % block_size for key in wanted
            ]


def test_prefix_sums_of_queries_are_passed_on() -> None:
    _, _, host = random_step(3, 16, 0)
    assert list_pages(host, 1, 16, 0).queries is host.cu_seqlens_q

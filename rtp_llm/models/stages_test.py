# SPDX-License-Identifier: Apache-2.0
"""Layers are divided among stages by their bytes."""

from __future__ import annotations

import itertools

import pytest

from rtp_llm.models.stages import divide


def test_equal_layers() -> None:
    assert divide([5] * 8, 2) == [range(4), range(4, 8)]
    assert divide([5] * 8, 1) == [range(8)]
    assert divide([5] * 3, 3) == [range(1), range(1, 2), range(2, 3)]


def test_the_first_stage_has_fewer_for_what_it_has_besides() -> None:
    assert divide([5] * 8, 2, 10) == [range(3), range(3, 8)]
    assert divide([5] * 4, 2, 1000) == [range(1), range(1, 4)]


def test_no_other_division_has_a_smaller_largest_stage() -> None:
    sizes = [3, 9, 1, 1, 7, 2, 8, 4]
    for stages, first in itertools.product((2, 3, 4), (0, 6)):
        found = divide(sizes, stages, first)
        assert [layer for run in found for layer in run] == list(range(len(sizes)))
        assert all(found)

        def largest(runs: list[range], first: int = first) -> int:
            sums = [sum(sizes[layer] for layer in run) for run in runs]
            return max(sums[0] + first, *sums[1:])

        every = (
            [range(a, b) for a, b in itertools.pairwise((0, *cuts, len(sizes)))]
            for cuts in itertools.combinations(range(1, len(sizes)), stages - 1)
        )
        assert largest(found) == min(map(largest, every))


def test_fewer_layers_than_stages() -> None:
    with pytest.raises(ValueError, match="2 layers for 3 stages"):
        divide([1, 1], 3)

# SPDX-License-Identifier: Apache-2.0
"""Sums by our own kernel between GPUs, each with its process; skipped with fewer than two."""

from __future__ import annotations

import pytest

from rtp_llm.testing.distributed.gpu_sums import checked, left_alone, planned_limits, replayed
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.testing.usable_gpu import usable_gpus

GPU, COUNT = usable_gpus()
on_gpus = pytest.mark.parametrize(
    "size",
    [
        pytest.param(
            size,
            marks=pytest.mark.skipif(
                GPU != "cuda" or size > COUNT, reason=f"{COUNT} GPUs of {GPU or 'no kind'}"
            ),
        )
        for size in (2, 4, 8)
    ],
)


@on_gpus
def test_ranks_have_the_sum_and_the_same_bits(tmp_path, size):
    first, *others = run_ranks(tmp_path, size, checked, device=GPU)
    assert isinstance(first, list), first
    assert all(other == first for other in others)


@on_gpus
def test_100_000_sums_in_replays_of_a_graph(tmp_path, size):
    assert run_ranks(tmp_path, size, replayed, 100_000, device=GPU) == [0] * size


@on_gpus
def test_a_rank_that_is_killed_ends_the_wait_of_the_others(tmp_path, size):
    answer = run_ranks(tmp_path, size, left_alone, device=GPU, timeout=20.0)[0]
    # What the rank answers comes before it looks for the others, which are gone.
    waited, seconds = answer
    assert waited and seconds < 2.0


@on_gpus
def test_larger_sums_are_the_groups(tmp_path, size):
    assert run_ranks(tmp_path, size, planned_limits, device=GPU) == [1] * size

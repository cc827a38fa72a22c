# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine between GPUs; skipped with fewer than two."""

from __future__ import annotations

import pytest

from rtp_llm.testing.distributed.all_to_all import CASES, TOLERANCE, captured_errors, worst_errors
from rtp_llm.testing.distributed.gpu_exchanges import left_alone, replayed, steps
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.testing.usable_gpu import usable_gpus

GPU, COUNT = usable_gpus()
peer_memory = pytest.mark.skipif(GPU != "cuda", reason=f"GPUs of {GPU or 'no kind'}")
on_gpus = pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, marks=pytest.mark.skipif(size > COUNT, reason=f"{COUNT} GPUs"))
        for size in (2, 4)
    ],
)


@on_gpus
def test_ranks_together_give_what_one_gives(tmp_path, size):
    for worst in run_ranks(tmp_path, size, worst_errors, CASES[size], GPU, device=GPU):
        assert isinstance(worst, list), worst
        modes = 5 if GPU == "cuda" else 3
        assert len(worst) == modes * len(CASES[size])
        for error, dtype in worst:
            assert error <= TOLERANCE[dtype]


@on_gpus
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("is_direct", [False, pytest.param(True, marks=peer_memory)])
def test_a_captured_all_to_all_gives_the_sums_of_other_tokens(tmp_path, size, rows, is_direct):
    for error in run_ranks(tmp_path, size, captured_errors, rows, GPU, is_direct, device=GPU):
        assert isinstance(error, float), error
        assert error < 1e-4


@on_gpus
@peer_memory
def test_100_000_exchanges_in_replays_of_a_graph(tmp_path, size):
    assert run_ranks(tmp_path, size, replayed, 100_000, device=GPU) == [0] * size


@on_gpus
@peer_memory
def test_larger_steps_and_trials_are_the_groups(tmp_path, size):
    expected = [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert run_ranks(tmp_path, size, steps, device=GPU) == [expected] * size


@on_gpus
@peer_memory
def test_a_rank_that_is_killed_ends_the_wait_of_the_others(tmp_path, size):
    # What the rank answers comes before it looks for the others, which are gone.
    waited, seconds = run_ranks(tmp_path, size, left_alone, device=GPU, timeout=20.0)[0]
    assert waited and seconds < 10.0

"""Dispatch and combine between GPUs; skipped with fewer than two."""

from __future__ import annotations

import pytest

from rtp_llm.distributed.all_to_all_for_tests import CASES, TOLERANCE, captured_errors, worst_errors
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.testing.usable_gpu import usable_gpus

GPU, COUNT = usable_gpus()
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
        assert len(worst) == 3 * len(CASES[size])
        for error, dtype in worst:
            assert error <= TOLERANCE[dtype]


@on_gpus
@pytest.mark.parametrize("rows", [1, 20])
def test_a_captured_all_to_all_gives_the_sums_of_other_tokens(tmp_path, size, rows):
    for error in run_ranks(tmp_path, size, captured_errors, rows, GPU, device=GPU):
        assert isinstance(error, float), error
        assert error < 1e-4

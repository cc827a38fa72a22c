# SPDX-License-Identifier: Apache-2.0
"""Sums and columns of several ranks: which numbers, in which order, the same bits everywhere."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.testing.ranks import run_ranks

SIZE = 3


def _parts(dtype: torch.dtype) -> list[torch.Tensor]:
    """What each rank has: large numbers of both signs, so that the order of the sum matters."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 7, generator=generator).mul(300).to(dtype) for _ in range(SIZE)]


def _summed(world, dtype):
    ranks = TensorParallel(world.rank, world.size, world.tensors)
    part = _parts(dtype)[world.rank]
    across = part.t()
    in_place = part.clone()
    assert ranks.all_reduce(in_place) is in_place
    across = ranks.all_reduce(across)
    return [each.tolist() for each in (in_place, across, part)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sum_is_that_in_the_order_of_ranks(tmp_path, dtype):
    first, second, third = (part.float() for part in _parts(dtype))
    expected = (first + second + third).to(dtype)
    for in_place, across, part in run_ranks(tmp_path, SIZE, _summed, dtype):
        assert in_place == expected.tolist()
        assert across == expected.t().tolist()
        assert part != expected.tolist(), "what is not contiguous stays as it was"


def _gathered(world):
    ranks = TensorParallel(world.rank, world.size, world.tensors)
    columns = 10 * torch.arange(2)[:, None] + torch.tensor([2 * world.rank, 2 * world.rank + 1])
    return ranks.all_gather(columns).tolist(), ranks.all_gather(columns[:0]).shape


def test_columns_stand_in_the_order_of_ranks(tmp_path):
    for rows, none in run_ranks(tmp_path, SIZE, _gathered):
        assert rows == [[*range(6)], [*range(10, 16)]]
        assert none == (0, 6)


def test_one_rank_has_everything():
    tensor = torch.ones(2, 3)
    assert SINGLE.all_reduce(tensor) is tensor
    assert SINGLE.all_gather(tensor) is tensor


@pytest.mark.parametrize(("rank", "size"), [(1, 1), (-1, 2), (0, 2)])
def test_ranks_without_their_group_are_refused(rank, size):
    with pytest.raises(ValueError, match=r"tensor-parallel rank"):
        TensorParallel(rank, size, None)

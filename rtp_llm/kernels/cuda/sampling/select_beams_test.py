# SPDX-License-Identifier: Apache-2.0
"""The selection of beams on a GPU: wide ones, in graphs, and offsets that the host cannot check."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.beams_reference import select_beams_reference
from rtp_llm.testing.gpu import captured


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def diverse_search(searches: int, groups: int, width: int, columns: int) -> tuple[Tensor, ...]:
    """Arguments of searches that all have as many groups of as many beams."""
    torch.manual_seed(0)
    beams = searches * groups * width
    values = (-9 * torch.rand(beams, columns)).sort(descending=True).values
    ids = torch.rand(beams, 3 * columns).argsort()[:, :columns].int()
    return (
        values,
        ids,
        torch.randperm(beams).int(),
        -5 * torch.rand(beams),
        width * torch.arange(searches * groups + 1, dtype=torch.int32),
        groups * torch.arange(searches + 1, dtype=torch.int32),
        torch.full((searches,), 0.75 * (groups > 1)),
        torch.arange(2 * searches, dtype=torch.int32),
        2 * torch.arange(searches + 1, dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("searches", "groups", "width", "columns"),
    [(64, 1, 8, 16), (3, 1, 128, 256), (2, 4, 16, 80), (200, 2, 2, 8)],
)
def test_wide_searches_equal_the_reference(
    searches: int, groups: int, width: int, columns: int
) -> None:
    given = diverse_search(searches, groups, width, columns)
    found = ops.select_beams(*given, columns)
    expected = select_beams_reference(*given, columns)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=1e-6)


def test_a_graph_selects_from_what_is_there_then() -> None:
    given = diverse_search(8, 2, 4, 16)
    replay, found = captured(lambda: ops.select_beams(*given, 8))
    given[0].mul_(0.5)
    given[3].neg_()
    replay()
    expected = select_beams_reference(*given, 8)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wrong", [-9, 10**9])
def test_rows_and_offsets_that_are_not_there_are_left_out(wrong: int) -> None:
    given = list(diverse_search(2, 2, 3, 5))
    given[2] = given[2].clone()
    given[2][1] = wrong
    missing = given[2].clone()
    missing[1] = -1
    found = ops.select_beams(*given, 5)
    expected = select_beams_reference(*given[:2], missing, *given[3:], 5)
    assert torch.equal(found[0], expected[0])
    for place in (4, 5, 8):
        offsets = given[place].clone()
        offsets[1] = wrong
        parents = ops.select_beams(*given[:place], offsets, *given[place + 1 :], 5)[0]
        assert parents.shape == (2, 4, 5)
    torch.cuda.synchronize()

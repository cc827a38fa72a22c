# SPDX-License-Identifier: Apache-2.0
"""The selection of beams equals its reference, and what a full sort of all continuations gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.beams_reference import select_beams_reference
from rtp_llm.testing.operator_checks import cpu_only, kernel_runs


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def offsets(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0).int()


def random_searches(
    searches: list[list[int]], columns: int, vocab: int, *, rounded: bool = False
) -> tuple[Tensor, ...]:
    """Arguments of searches whose groups have so many beams; ``rounded`` makes ties."""
    widths = [width for groups in searches for width in groups]
    beams = sum(widths)
    values = -4 * torch.rand(beams + 3, columns)
    scores = -9 * torch.rand(beams)
    if rounded:
        values, scores = values.round(), scores.round()
    values = values.sort(descending=True).values
    ids = torch.rand(beams + 3, vocab).argsort()[:, :columns].int()
    rows = torch.randperm(beams + 3)[:beams].int()
    rows[torch.rand(beams) < 0.1] = -1
    if beams > 2:
        values[rows[1], columns // 2 :] = -torch.inf
    stops = [number % 4 for number in range(len(searches))]
    penalties = torch.rand(len(searches)) * (torch.arange(len(searches)) % 3 > 0)
    return (
        values,
        ids,
        rows,
        scores,
        offsets(widths),
        offsets([len(groups) for groups in searches]),
        2 * penalties,
        torch.randint(0, vocab, (sum(stops),)).int(),
        offsets(stops),
    )


def assert_equal_to_reference(given: tuple[Tensor, ...], k: int) -> tuple[Tensor, ...]:
    expected = select_beams_reference(*given, k)
    with kernel_runs("select_beams"):
        found = ops.select_beams(*given, k)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=1e-6)
    return found


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    ("searches", "columns"),
    [
        ([[1]], 1),
        ([[2], [3], [1]], 4),
        ([[8]] * 8, 16),
        ([[16], [5]], 33),
        ([[2, 2, 2], [4], [3, 3], [1] * 5, [4, 4]], 11),
        ([[7, 0, 5], [0], [3]], 20),
        ([[40], [64, 64]], 130),
    ],
)
def test_equal_to_the_reference(searches: list[list[int]], columns: int, rounded: bool) -> None:
    given = random_searches(searches, columns, 3 * columns + 1, rounded=rounded)
    for k in (1, columns, 2 * columns):
        assert_equal_to_reference(given, k)


@pytest.mark.parametrize(("width", "vocab"), [(1, 7), (3, 97), (8, 5001), (16, 151_937)])
def test_after_top_logprobs_it_is_the_top_k_of_all_continuations(width: int, vocab: int) -> None:
    searches, k = 1 if vocab > 9999 else 3, 2 * width
    logits, scores = torch.randn(searches * width, vocab), -5 * torch.rand(searches * width)
    logits[0] = -torch.inf  # excluded tokens count as very unlikely ones
    _, values, ids = ops.top_logprobs(logits, int32(*[0] * len(logits)), min(k, vocab))
    cu, rows = offsets([width] * searches), torch.arange(len(logits)).int()
    none = torch.zeros(searches), int32(), offsets([0] * searches)
    given = values, ids, rows, scores, cu, offsets([1] * searches), *none
    (parents, tokens), (totals, logprobs) = assert_equal_to_reference(given, min(k, vocab))
    everything = logits.double().log_softmax(1).nan_to_num(nan=-1e4).clamp(min=-1e4)
    sums = (scores.double()[:, None] + everything).view(searches, -1)
    best = sums.topk(min(k, vocab)).values.float()
    torch.testing.assert_close(totals, best, rtol=1e-6, atol=2e-5)
    place = (parents + width * torch.arange(searches)[:, None]).long()
    chosen = everything[place, tokens.long()].float()
    torch.testing.assert_close(logprobs, chosen, rtol=1e-6, atol=2e-5)


def test_diverse_groups_by_hand() -> None:
    """Token 7 is the best one of all; the stop id 5 is chosen by nobody."""
    values = torch.tensor([[-0.5, -1.0, -2.0]]).repeat(6, 1)
    ids = int32(7, 5, 9).repeat(6, 1)
    rows, scores = int32(0, -1, 2, -1, 4, -1), torch.zeros(6)
    searches = offsets([2, 2, 2]), int32(0, 3), torch.tensor([1.0]), int32(5), int32(0, 1)
    (parents, tokens), (totals, logprobs) = ops.select_beams(
        values, ids, rows, scores, *searches, 3
    )
    assert tokens.tolist() == [[7, 5, 9], [5, 7, 9], [5, 7, 9]]
    assert totals.tolist() == [[-0.5, -1, -2], [-1, -1.5, -3], [-1, -2.5, -4]]
    assert logprobs.tolist() == [[-0.5, -1, -2], [-1, -0.5, -2], [-1, -0.5, -2]]
    assert parents.tolist() == [[0] * 3] * 3


def test_ties_begin_with_the_lowest_beam() -> None:
    values, ids = torch.zeros(3, 2), int32(4, 6).repeat(3, 1)
    one = offsets([3]), offsets([1]), torch.zeros(1), int32(), offsets([0])
    (parents, tokens), _ = ops.select_beams(values, ids, int32(2, 0, 1), torch.zeros(3), *one, 5)
    assert parents.tolist() == [[0, 0, 1, 1, 2]]
    assert tokens.tolist() == [[4, 6, 4, 6, 4]]


def test_no_searches_no_beams_and_no_candidates() -> None:
    nothing = torch.empty(0, 4), torch.empty(0, 4).int(), int32(), torch.empty(0)
    found = ops.select_beams(*nothing, int32(0), int32(0), torch.empty(0), int32(), int32(0), 3)
    assert [each.shape for each in found] == [(2, 0, 3)] * 2
    empty = int32(0, 0), int32(0, 1), torch.ones(1), int32(), int32(0, 0)
    (parents, tokens), (totals, logprobs) = ops.select_beams(*nothing, *empty, 2)
    assert parents.tolist() == tokens.tolist() == [[-1, -1]]
    assert totals.tolist() == logprobs.tolist() == [[-torch.inf] * 2]
    given = random_searches([[3]], 4, 9)
    assert [each.shape for each in ops.select_beams(*given, 0)] == [(2, 1, 0)] * 2


def test_meta_function_gives_shapes_and_dtypes() -> None:
    given = [each.to("meta") for each in random_searches([[3, 3], [2]], 4, 9)]
    found = ops.select_beams(*given, 6)
    assert [each.shape for each in found] == [(2, 3, 6)] * 2
    assert [each.dtype for each in found] == [torch.int32, torch.float32]


def test_wrong_arguments_are_named() -> None:
    given = random_searches([[3, 3], [2]], 4, 9)
    names = ("values", "ids", "rows", "scores", "cu_beams", "cu_groups", "diversity_penalty")
    for place, name in enumerate((*names, "stop_ids", "cu_stops")):
        if name in ("diversity_penalty", "cu_beams"):  # they say how many there are
            wrong = given[place].double()
        else:
            wrong = torch.cat((given[place], given[place][:1])).double()
        with pytest.raises(RuntimeError, match=f"select_beams: {name} is"):
            ops.select_beams(*given[:place], wrong, *given[place + 1 :], 6)
    with pytest.raises(RuntimeError, match="select_beams: k is -1"):
        ops.select_beams(*given, -1)


@cpu_only
def test_rows_and_offsets_that_are_not_there_are_named() -> None:
    given = list(random_searches([[3, 3], [2]], 4, 9))
    for place, name in ((4, "cu_beams"), (5, "cu_groups"), (8, "cu_stops")):
        wrong = given[place].clone()
        wrong[-1] += 1
        with pytest.raises(RuntimeError, match=f"{name} must rise from 0"):
            ops.select_beams(*given[:place], wrong, *given[place + 1 :], 6)
    given[2][3] = 11
    with pytest.raises(RuntimeError, match=r"rows\[3\] is 11 of 11 rows"):
        ops.select_beams(*given, 6)

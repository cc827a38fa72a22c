# SPDX-License-Identifier: Apache-2.0
"""How beams go on, in their numbers and in the paged cache, equals the references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.beams_reference import choose_beams_reference, order_beams_reference
from rtp_llm.testing.operator_checks import cpu_only, kernel_runs


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def offsets(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0).int()


def random_choice(searches: list[list[int]], k: int, vocab: int) -> list[Tensor]:
    """Arguments of searches whose groups have so many beams; every third group does not choose."""
    widths = [width for groups in searches for width in groups]
    beams, groups = sum(widths), len(widths)
    tokens = torch.randint(0, vocab, (groups, k)).int()
    tokens[torch.rand(groups) < 0.3, k // 2 :] = -1
    stops = [number % 4 for number in range(len(searches))]
    rows = torch.randperm(2 * beams)[:beams].int()
    rows[torch.rand(beams) < 0.2] = -1
    goes = [max(0, width - place % 2) for place, width in enumerate(widths)]
    goes[2::3] = [0] * len(goes[2::3])
    parents = torch.stack([torch.randint(0, max(1, width), (k,)) for width in widths]).int()
    return [
        torch.stack((parents, tokens)),
        -torch.rand(2, groups, k),
        int32(*goes),
        rows,
        offsets(widths),
        offsets([len(groups) for groups in searches]),
        torch.randint(0, vocab, (sum(stops),)).int(),
        offsets(stops),
        torch.rand(beams + 3),
        torch.randint(0, 99, (beams + 3,)).int(),
        torch.randint(0, 99, (2 * beams,)).int(),
    ]


@pytest.mark.parametrize(
    ("searches", "k"),
    [
        ([[1]], 1),
        ([[2], [3], [1]], 6),
        ([[8]] * 8, 16),
        ([[2, 2, 2], [4], [3, 3], [0], [4, 4]], 11),
        ([[40], [64, 128]], 300),
    ],
)
def test_a_choice_equals_the_reference(searches: list[list[int]], k: int) -> None:
    for vocab in (5, 1000):
        given = random_choice(searches, k, vocab)
        expected = [each.clone() for each in given]
        choose_beams_reference(*expected)
        with kernel_runs("choose_beams"):
            ops.choose_beams(*given)
        assert all(map(torch.equal, given, expected))


def test_a_choice_by_hand() -> None:
    scores, parents, rows = torch.zeros(5), int32(7, 7, 7, 7, 7), int32(*[9] * 4)
    numbers = int32(0, 1, 1, 0, 3, 5, 8, 4).view(2, 1, 4)
    values = torch.tensor([[[-1.0, -2, -3, -4]], [[0, 0, 0, 0]]])
    one = int32(0, 2), int32(0, 1), int32(5), int32(0, 1)
    ops.choose_beams(numbers, values, int32(2), int32(3, 1), *one, scores, parents, rows)
    assert scores.tolist() == [-1, -3, 0, 0, 0]
    assert parents.tolist() == [0, 1, 7, 7, 7]
    assert rows.tolist() == [9, 8, 9, 3]


def random_step(widths: list[int], block_size: int, columns: int) -> list[Tensor]:
    """Arguments of groups of so many beams, all of whose blocks differ; every fourth group is not
    in the step."""
    beams = sum(widths)
    rows = beams + 5
    positions = torch.randint(0, block_size * columns, (rows + 2,)).int()
    sequences, parents, places = [], [], iter(torch.randperm(rows).tolist())
    for place, width in enumerate(widths):
        first = len(sequences)
        chosen = torch.randint(0, max(1, width), (width,))
        if place % 3 == 1:  # a step in which nothing moves
            chosen = torch.arange(width)
        parents += (chosen + first).tolist()
        own = [next(places) if place % 4 < 3 else -1 for _ in range(width)]
        if width and own[0] >= 0:
            at = int(positions[own[0]])
            positions[own] = at - at % block_size if place % 2 else at
        sequences += own
    table = torch.randperm(rows * columns).int().view(rows, columns)
    table[:, 0] = -1  # as before a window
    slots = torch.randint(0, 999, (rows + 2,)).int()
    return [table, slots, positions, int32(*sequences), int32(*parents, 0), offsets(widths)]


@pytest.mark.parametrize("widths", [[1], [8] * 8, [2, 0, 5, 3, 16, 7], [128, 40, 1]])
@pytest.mark.parametrize("block_size", [1, 16])
def test_an_order_equals_the_reference(widths: list[int], block_size: int) -> None:
    for columns in (1, 2, 37):
        given = random_step(widths, block_size, columns)
        expected = [each.clone() for each in given]
        wanted = order_beams_reference(*expected, block_size)
        with kernel_runs("order_beams"):
            pairs = ops.order_beams(*given, block_size)
        assert torch.equal(pairs, wanted)
        assert all(map(torch.equal, given, expected))


def test_an_order_by_hand() -> None:
    """Beams 0 and 2 go on from beam 2, beam 1 from itself: the last block of beam 0 is spare."""
    first = int32(10, 11, 12, 20, 21, 22, 30, 31, 32).view(3, 3)
    beams = int32(0, 1, 2), int32(2, 1, 2), int32(0, 3)
    table, slots = first.clone(), int32(0, 0, 0)
    pairs = ops.order_beams(table, slots, int32(6, 6, 6), *beams, 4)
    assert table.tolist() == [[30, 31, 12], [20, 21, 22], [30, 11, 32]]
    assert pairs.tolist() == [[-1, -1], [-1, -1], [31, 11]]
    assert slots.tolist() == [31 * 4 + 2, 21 * 4 + 2, 11 * 4 + 2]
    table = first.clone()
    pairs = ops.order_beams(table, slots, int32(4, 4, 4), *beams, 4)  # their blocks are empty
    assert table.tolist() == [[30, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert pairs.tolist() == [[-1, -1]] * 3
    assert slots.tolist() == [11 * 4, 21 * 4, 31 * 4]


def test_nothing_to_do() -> None:
    table = torch.zeros(2, 3).int()
    pairs = ops.order_beams(table, int32(0, 0), int32(0, 0), int32(), int32(), int32(0), 4)
    assert pairs.shape == (0, 2)
    given = random_choice([[2], [3]], 4, 9)
    given[2].zero_()
    before = [each.clone() for each in given]
    ops.choose_beams(*given)
    assert all(map(torch.equal, given, before))


def test_traceable() -> None:
    tests = ("test_schema", "test_faketensor")
    given = random_choice([[3], [2, 2]], 6, 9)
    torch.library.opcheck(torch.ops.rtp_llm.choose_beams.default, tuple(given), test_utils=tests)
    step = (*random_step([3, 2], 4, 5), 4)
    torch.library.opcheck(torch.ops.rtp_llm.order_beams.default, step, test_utils=tests)


def test_wrong_arguments_are_named() -> None:
    given = random_choice([[3, 3], [2]], 4, 9)
    names = ("numbers", "values", "widths", "rows", "cu_beams", "cu_groups", "stop_ids")
    for place, name in enumerate((*names, "cu_stops", "scores", "beam_parents", "row_tokens")):
        wrong = given[place].double()
        with pytest.raises(RuntimeError, match=f"choose_beams: {name} is"):
            ops.choose_beams(*given[:place], wrong, *given[place + 1 :])
    step = random_step([3, 2], 4, 5)
    names = ("block_table", "slot_mapping", "positions", "sequences", "beam_parents", "cu_beams")
    for place, name in enumerate(names):
        with pytest.raises(RuntimeError, match=f"order_beams: {name} is"):
            ops.order_beams(*step[:place], step[place].double(), *step[place + 1 :], 4)
    with pytest.raises(RuntimeError, match="order_beams: blocks of 0 tokens"):
        ops.order_beams(*step, 0)


@cpu_only
def test_numbers_outside_their_tensors_are_named() -> None:
    given = random_choice([[3, 3], [2]], 4, 9)
    for place, number, problem in (
        (2, 4, r"widths\[0\] is 4 of 3 beams"),
        (3, 99, r"rows\[0\] is 99 of 16 rows"),
        (4, 1, "cu_beams must rise from 0 to 8"),
    ):
        wrong = given[place].clone()
        wrong[0] = number
        with pytest.raises(RuntimeError, match=problem):
            ops.choose_beams(*given[:place], wrong, *given[place + 1 :])
    step = random_step([3, 2], 4, 5)
    for place, number, problem in (
        (3, 10, r"sequences\[1\] is 10 of 10 sequences"),
        (3, -1, r"sequences\[1\] is -1"),
        (4, 3, r"beam_parents\[1\] is 3, its group has beams 0 to 2"),
    ):
        wrong = step[place].clone()
        wrong[1] = number
        with pytest.raises(RuntimeError, match=problem):
            ops.order_beams(*step[:place], wrong, *step[place + 1 :], 4)
    step[2].fill_(20)
    with pytest.raises(RuntimeError, match="is at position 20"):
        ops.order_beams(*step, 4)

# SPDX-License-Identifier: Apache-2.0
"""What a rank has of an axis, and what is said where there are no equal parts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rtp_llm.distributed.group import Group
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers.cut_targets import LinearCuts
from rtp_llm.layers.cuts import Cut, DivisionError, behind_each_other, in_groups

GROUP = cast(Group, object())  # nothing is sent here


def ranks(size: int) -> list[TensorParallel]:
    return [TensorParallel(rank, size, GROUP) for rank in range(size)]


def test_equal_parts_are_all_there_is() -> None:
    cuts = [Cut.even(12, rank, "size") for rank in ranks(3)]
    assert [cut.runs for cut in cuts] == [((0, 4),), ((4, 8),), ((8, 12),)]
    assert all((cut.whole, cut.size, cut.is_whole) == (12, 4, False) for cut in cuts)
    assert Cut.even(12, SINGLE, "size").is_whole
    assert cuts[1].wide(10) == Cut(120, ((40, 80),))


def test_unequal_parts_are_refused_with_the_arithmetic() -> None:
    message = r"heads 14 = 4 x 3 \+ 2: .* --tensor-parallel-size 1, 2, 7, 14 would not"
    with pytest.raises(DivisionError, match=message):
        Cut.even(14, ranks(4)[0], "heads")


@pytest.mark.parametrize(
    ("heads", "size", "expected"),
    [
        (8, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (1, 3, [(0, 1)] * 3),
    ],
)
def test_ranks_share_a_kv_head_where_these_are_fewer(
    heads: int, size: int, expected: list[tuple[int, int]]
) -> None:
    assert [Cut.of_kv_heads(heads, rank).runs for rank in ranks(size)] == [(e,) for e in expected]


def test_kv_heads_with_unequal_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(DivisionError, match=r"4 ranks for num_key_value_heads 3: 4 = 3 x 1 \+ 1"):
        Cut.of_kv_heads(3, ranks(4)[0])
    with pytest.raises(DivisionError, match=r"num_key_value_heads 6 = 4 x 1 \+ 2"):
        Cut.of_kv_heads(6, ranks(4)[0])


@pytest.mark.parametrize(
    ("vocabulary", "size", "expected"),
    [
        (512, 2, [(0, 256), (256, 512)]),
        (500, 2, [(0, 256), (256, 500)]),
        (151936, 4, [(38016 * r, min(151936, 38016 * (r + 1))) for r in range(4)]),
        (50, 2, [(0, 25), (25, 50)]),  # parts of 64 would leave one rank without a token
    ],
)
def test_a_vocabulary_is_divided_by_64(
    vocabulary: int, size: int, expected: list[tuple[int, int]]
) -> None:
    cuts = [Cut.of_vocabulary(vocabulary, rank) for rank in ranks(size)]
    assert [cut.runs for cut in cuts] == [(e,) for e in expected]


def test_a_rank_without_a_token_is_refused() -> None:
    with pytest.raises(DivisionError, match="vocab_size 5 for 4 ranks: one would have none"):
        Cut.of_vocabulary(5, ranks(4)[0])


def test_parts_behind_each_other_and_in_groups() -> None:
    queries, values = Cut(4, ((2, 4),)), Cut(6, ((3, 6),))
    assert behind_each_other([queries, values]) == Cut(10, ((2, 4), (7, 10)))
    assert in_groups([queries, values]) == Cut(10, ((5, 10),))
    wholes = behind_each_other([Cut(4, ((0, 4),)), Cut(6, ((0, 6),))])
    assert wholes == Cut(10, ((0, 10),))


def test_blocks_are_not_cut() -> None:
    assert Cut(1000, ((512, 1000),)).blocks(128, "w") == Cut(8, ((4, 8),))
    with pytest.raises(DivisionError, match=r"w would be cut at 192 of 768 = 1 x 128 \+ 64"):
        Cut(768, ((192, 384),)).blocks(128, "w")


def test_blocks_that_are_made_here_are_of_one_part() -> None:
    cuts = LinearCuts({"qkv": Cut(600, ((100, 200), (300, 400), (500, 600)))})
    with pytest.raises(DivisionError, match=r"qkv would have 100 = 0 x 128 \+ 100 rows"):
        cuts.check_blocks("qkv", ["qkv"], stored=False)
    one: dict[str, Any] = {"q": Cut(600, ((100, 200),))}
    LinearCuts(one).check_blocks("q", ["q"], stored=False)
    with pytest.raises(DivisionError, match="inside of a block"):
        LinearCuts(one).check_blocks("q", ["q"], stored=True)


def test_the_first_rank_adds_the_bias_of_a_sum() -> None:
    of_ranks = [LinearCuts(columns=Cut.even(8, rank, "size")) for rank in ranks(2)]
    assert [cuts.adds_bias for cuts in of_ranks] == [True, False]
    assert all(cuts.gives_parts for cuts in of_ranks)
    whole = LinearCuts(columns=Cut.even(8, SINGLE, "size"))
    assert whole.adds_bias and not whole.gives_parts

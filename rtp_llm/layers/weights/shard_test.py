# SPDX-License-Identifier: Apache-2.0
"""What a rank has of an axis, and what is said where there are no equal parts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rtp_llm.distributed.group import Group
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers.weights.fp8_formats import Fp8Block
from rtp_llm.layers.weights.shard import DivisionError, Shard, concatenated, grouped
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.layers.weights.stored_format import FLOAT
from rtp_llm.ops.fp8.fp8_blocks import BLOCK

GROUP = cast(Group, object())  # nothing is sent here


def ranks(size: int) -> list[TensorParallel]:
    return [TensorParallel(rank, size, GROUP) for rank in range(size)]


def test_equal_parts_are_all_there_is() -> None:
    shards = [Shard.even(12, rank, "size") for rank in ranks(3)]
    assert [shard.ranges for shard in shards] == [((0, 4),), ((4, 8),), ((8, 12),)]
    assert all((shard.whole, shard.size, shard.is_whole) == (12, 4, False) for shard in shards)
    assert Shard.even(12, SINGLE, "size").is_whole
    assert shards[1].scaled(10) == Shard(120, ((40, 80),))


def test_unequal_parts_are_refused_with_the_arithmetic() -> None:
    message = r"heads 14 = 4 x 3 \+ 2: .* --tensor-parallel-size 1, 2, 7, 14 would not"
    with pytest.raises(DivisionError, match=message):
        Shard.even(14, ranks(4)[0], "heads")


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
    assert [Shard.of_kv_heads(heads, rank).ranges for rank in ranks(size)] == [
        (e,) for e in expected
    ]


def test_kv_heads_with_unequal_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(DivisionError, match=r"4 ranks for num_key_value_heads 3: 4 = 3 x 1 \+ 1"):
        Shard.of_kv_heads(3, ranks(4)[0])
    with pytest.raises(DivisionError, match=r"num_key_value_heads 6 = 4 x 1 \+ 2"):
        Shard.of_kv_heads(6, ranks(4)[0])


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
    shards = [Shard.of_vocabulary(vocabulary, rank) for rank in ranks(size)]
    assert [shard.ranges for shard in shards] == [(e,) for e in expected]


def test_a_rank_without_a_token_is_refused() -> None:
    with pytest.raises(DivisionError, match="vocab_size 5 for 4 ranks: one would have none"):
        Shard.of_vocabulary(5, ranks(4)[0])


def test_parts_behind_each_other_and_in_groups() -> None:
    queries, values = Shard(4, ((2, 4),)), Shard(6, ((3, 6),))
    assert concatenated([queries, values]) == Shard(10, ((2, 4), (7, 10)))
    assert grouped([queries, values]) == Shard(10, ((5, 10),))
    wholes = concatenated([Shard(4, ((0, 4),)), Shard(6, ((0, 6),))])
    assert wholes == Shard(10, ((0, 10),))


def test_blocks_are_not_cut() -> None:
    assert Shard(1000, ((512, 1000),)).blocks(128, "w") == Shard(8, ((4, 8),))
    with pytest.raises(DivisionError, match=r"w would be split at 192 of 768 = 1 x 128 \+ 64"):
        Shard(768, ((192, 384),)).blocks(128, "w")


def test_blocks_that_are_made_here_are_of_one_part() -> None:
    shards = LinearShards({"qkv": Shard(600, ((100, 200), (300, 400), (500, 600)))})
    with pytest.raises(DivisionError, match=r"qkv would have 100 = 0 x 128 \+ 100 rows"):
        shards.check_blocks("qkv", ["qkv"], FLOAT, BLOCK)
    one: dict[str, Any] = {"q": Shard(600, ((100, 200),))}
    LinearShards(one).check_blocks("q", ["q"], FLOAT, BLOCK)
    with pytest.raises(DivisionError, match="inside of a block"):
        LinearShards(one).check_blocks("q", ["q"], Fp8Block())


def test_the_first_rank_adds_the_bias_of_a_sum() -> None:
    of_ranks = [LinearShards(columns=Shard.even(8, rank, "size")) for rank in ranks(2)]
    assert [shards.adds_bias for shards in of_ranks] == [True, False]
    assert all(shards.is_partial for shards in of_ranks)
    whole = LinearShards(columns=Shard.even(8, SINGLE, "size"))
    assert whole.adds_bias and not whole.is_partial

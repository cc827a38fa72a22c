# SPDX-License-Identifier: Apache-2.0
"""Tokens on their way to experts and back, among ranks that share one GPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.collective.rank_buffers import ABSENT
from rtp_llm.ops.collective.token_exchange import message_bytes
from rtp_llm.ops.collective.token_exchange_reference import Tokens, sums_of, tokens_for
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, kernel_runs
from rtp_llm.testing.stream_ranks import StreamRanks

SLOTS = 6  # of each rank
CAPACITY = 4 << 20

every_size = pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@dataclass(frozen=True)
class Shape:
    """`counts`: tokens of the ranks in turn, at most `rows`; k choices of each."""

    counts: tuple[int, ...]
    rows: int
    hidden: int
    k: int


SHAPES = [
    Shape((1,), 1, 2048, 8),
    Shape((0,), 1, 8, 1),
    Shape((0, 3), 5, 64, 2),
    Shape((40, 17, 0, 33), 40, 136, 5),
    Shape((256,), 256, 1032, 8),
    Shape((7,), 9, 7168, 8),
    Shape((2, 0), 2, 24, 64),
]


def tokens_of(size: int, shape: Shape, dtype: torch.dtype) -> list[Tokens]:
    """Of all ranks: choices on few of them, also none."""
    made = []
    for rank in range(size):
        count = shape.counts[rank % len(shape.counts)]
        ids = torch.randint(-SLOTS, SLOTS * (size + 1), (count, shape.k), dtype=torch.int32)
        ids[::3] %= SLOTS  # all on the first
        ids[1::4] = -1
        made.append((torch.randn(count, shape.hidden).to(dtype), ids, torch.rand(count, shape.k)))
    return made


def computed(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """What stands for experts; rows without a slot are no numbers."""
    out = x * (1 + weights.where(ids >= 0, 0).sum(1, keepdim=True)).to(x.dtype)
    return out.where((ids >= 0).any(1, keepdim=True), float("nan"))


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


class Ranks(StreamRanks):
    """Ranks that exchange tokens."""

    def __init__(self, size: int) -> None:
        super().__init__(size, CAPACITY)

    def dispatch(self, rank: int, tokens: Tokens, rows: int) -> Tokens:
        return ops.dispatch_tokens(*tokens, SLOTS, rows, *self.among(rank))

    def combine(self, rank: int, results: Tensor, there: Tensor, ids: Tensor) -> Tensor:
        return ops.combine_tokens(results, there, ids, SLOTS, *self.among(rank))

    def through(self, rank: int, tokens: Tokens, rows: int) -> tuple[Tokens, Tensor]:
        """What each rank received, and what was returned to it."""
        there = self.dispatch(rank, tokens, rows)
        return there, self.combine(rank, computed(*there), there[1], tokens[1])


def expected_of(tokens: list[Tokens], rows: int) -> tuple[list[Tokens], list[Tensor]]:
    there = [tokens_for(rank, tokens, SLOTS, rows) for rank in range(len(tokens))]
    results = [computed(*each) for each in there]
    sums = [sums_of(rank, results, ids, SLOTS) for rank, (_, ids, _) in enumerate(tokens)]
    return there, sums


def check(ranks: Ranks, tokens: list[Tokens], rows: int) -> None:
    found: dict[int, tuple[Tokens, Tensor]] = {}
    expected, sums = expected_of(tokens, rows)  # loads kernels before anybody waits for another

    def work(rank: int) -> None:
        found[rank] = ranks.through(rank, tokens[rank], rows)

    with kernel_runs("dispatch_tokens", ranks.size), kernel_runs("combine_tokens", ranks.size):
        ranks.run(work)
    for rank in range(ranks.size):
        (x, ids, weights), total = found[rank]
        assert torch.equal(ids, expected[rank][1])
        here = (ids >= 0).any(1)
        assert_equal(x[here], expected[rank][0][here])
        assert_equal(weights, expected[rank][2])
        assert_equal(total, sums[rank])


@pytest.fixture(scope="module", autouse=True)
def loaded_kernels() -> None:
    """Load all kernels by ranks without a peer: loading may wait for kernels that wait for one."""
    for dtype in FLOAT_DTYPES:
        for shape in SHAPES:
            check(Ranks(1), tokens_of(1, shape, dtype), shape.rows)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_size
@every_dtype
def test_tokens_and_sums_equal_the_reference(size: int, dtype: torch.dtype) -> None:
    ranks = Ranks(size)
    for shape in SHAPES:
        for _ in range(2):
            check(ranks, tokens_of(size, shape, dtype), shape.rows)


@pytest.mark.parametrize("size", [2, 4])
@every_dtype
def test_special_numbers_come_through(size: int, dtype: torch.dtype) -> None:
    words = [ABSENT, 0x7FC07FC0, 0x7F807F80, 0x7F800000, -0x800000, 0x00008000, 0, 0x3F803F80]
    ranks, shape = Ranks(size), Shape((5,), 6, 264, 3)
    for _ in range(5):  # epochs come again
        tokens = tokens_of(size, shape, dtype)
        for x, _, weights in tokens:
            picked = torch.tensor(words, dtype=torch.int32)[torch.randint(0, 8, (5, 264))]
            x.copy_(picked.view(dtype)[:, :264].where(torch.rand(5, 264) < 0.5, x))
            weights.copy_(picked[:, :3].view(torch.float32))
        check(ranks, tokens, shape.rows)


@every_dtype
def test_a_message_of_nothing_but_the_absent_word(dtype: torch.dtype) -> None:
    x = torch.full((3, 256), ABSENT, dtype=torch.int32).view(dtype)
    ids, weights = torch.tensor([[0, SLOTS]] * 3, dtype=torch.int32), torch.full((3, 2), -0.0)
    ranks, found = Ranks(2), dict[int, tuple[Tokens, Tensor]]()
    results = torch.cat([x, x])  # here: to load its kernel waits for those that wait for a rank

    def work(rank: int) -> None:
        there = ranks.dispatch(rank, (x, ids, weights), 3)
        found[rank] = there, ranks.combine(rank, results, there[1], ids)

    ranks.run(work)
    for there, total in found.values():
        assert (there[0] == 0).all() and not there[2].any()
        assert not bits(total).any(), "sums of zeros are +0.0"


@pytest.mark.parametrize("size", [2, 4])
def test_calls_of_all_sizes_follow_each_other_without_a_wait(size: int) -> None:
    # Fewer launches than a stream's queue has room for: in front of a full one the host would wait
    # for a rank that it has not started.
    ranks, count = Ranks(size), 30
    rows = torch.randint(1, 100, (count,), device="cpu").tolist()
    shapes = [Shape((each, each // 2, 0), each, 8 * (1 + each % 40), 1 + each % 9) for each in rows]
    tokens = [tokens_of(size, shape, torch.bfloat16) for shape in shapes]
    found: dict[tuple[int, int], tuple[Tokens, Tensor]] = {}

    def work(rank: int) -> None:
        for call in range(count):
            found[call, rank] = ranks.through(rank, tokens[call][rank], rows[call])

    ranks.run(work)
    for call in range(count):
        there, sums = expected_of(tokens[call], rows[call])
        for rank in range(size):
            (_, ids, _), total = found[call, rank]
            assert torch.equal(ids, there[rank][1]), (call, rank)
            assert torch.equal(total, sums[rank]), (call, rank)


@pytest.mark.parametrize("size", [2, 4])
def test_replays_of_graphs_take_what_their_inputs_hold_by_then(size: int) -> None:
    ranks, replays, sets, shape = Ranks(size), 1000, 7, Shape((5,), 5, 2048, 8)
    inputs = [tokens_of(size, shape, torch.bfloat16) for _ in range(sets)]
    expected = [torch.stack(expected_of(each, shape.rows)[1]) for each in inputs]
    given = [tuple(part.clone() for part in each) for each in inputs[0]]
    found: dict[int, Tensor] = {}

    def step(rank: int) -> None:
        found[rank] = ranks.through(rank, given[rank], shape.rows)[1]

    graph, wrong = ranks.captured(step), torch.zeros((), dtype=torch.int64)

    def work(_: int) -> None:
        for turn in range(replays):
            for rank in range(size):
                for target, source in zip(given[rank], inputs[turn % sets][rank], strict=True):
                    target.copy_(source)
            graph.replay()
            for rank in range(size):
                wrong.add_((found[rank] != expected[turn % sets][rank]).sum())

    ranks.run(work, range(1))
    assert not wrong


def test_the_host_ends_the_wait_for_a_rank_that_does_not_come() -> None:
    ranks, shape = Ranks(2), Shape((40,), 40, 4096, 4)
    tokens = tokens_of(2, shape, torch.bfloat16)
    check(ranks, tokens, shape.rows)  # kernels are loaded
    found: dict[int, tuple[Tokens, Tensor]] = {}

    def work(rank: int) -> None:
        there = ranks.dispatch(rank, tokens[rank], shape.rows)
        found[rank] = there, ranks.combine(rank, there[0], there[1], tokens[rank][1])

    ranks.start(work, range(1))
    assert not ranks.done(0.3), "nobody is there"
    ranks.abort_word.fill_(1)
    assert ranks.done(10.0)
    ids = found[0][0][1].view(2, shape.rows, shape.k)
    assert ((ids[1] < 0) | (ids[1] >= SLOTS)).all(), "no rows for experts"


def test_what_does_not_fit_is_refused() -> None:
    ranks = Ranks(2)
    x, ids, weights = torch.ones(4, 64), torch.zeros(4, 2, dtype=torch.int32), torch.ones(4, 2)
    results, there = torch.ones(8, 64), torch.zeros(8, 2, dtype=torch.int32)
    least = message_bytes(4, 64, torch.float32, 2)

    def dispatch(
        x: Tensor, ids: Tensor = ids, weights: Tensor = weights, rows: int = 4, less: int = 0
    ) -> None:
        among = ranks.buffers, ranks.states[0], 0, least - less
        ops.dispatch_tokens(x, ids, weights, SLOTS, rows, *among)

    with pytest.raises(RuntimeError, match=r"sends 1152 bytes to each rank; .* at most 1136"):
        dispatch(x, less=32)
    with pytest.raises(RuntimeError, match="at most as many tokens"):
        dispatch(x, rows=3)
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        dispatch(x[:, :3].clone())
    with pytest.raises(RuntimeError, match="ids is int64"):
        dispatch(x, ids.long())
    with pytest.raises(RuntimeError, match="from 1 to 64 columns"):
        dispatch(x, ids.repeat(1, 33), weights.repeat(1, 33))
    with pytest.raises(RuntimeError, match="weights"):
        dispatch(x, ids, weights[:3])
    with pytest.raises(RuntimeError, match="as many rows of each of 2 ranks"):
        ranks.combine(0, results[:7], there[:7], ids)
    with pytest.raises(RuntimeError, match="at most 3 tokens"):
        ranks.combine(0, results[:6], there[:6], ids)
    with pytest.raises(RuntimeError, match="expected 2 columns"):
        ranks.combine(0, results, there.repeat(1, 2), ids)

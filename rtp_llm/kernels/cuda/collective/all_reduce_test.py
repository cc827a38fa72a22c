# SPDX-License-Identifier: Apache-2.0
"""Sums over ranks that share one GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.collective.all_reduce_reference import add_rms_norm_of_parts, sum_of_parts
from rtp_llm.ops.collective.rank_buffers import ABSENT, PACK_BYTES
from rtp_llm.ops.norm.norm_reference import rms_norm_reference
from rtp_llm.testing.fp8_rows import assert_quantized
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, assert_near, kernel_runs
from rtp_llm.testing.stream_ranks import StreamRanks

EPS, OFFSET = 1e-6, 1.0
CAPACITY = 4 << 20
QUANTISED = [(1, 128), (1, 8192), (3, 384), (7, 4224), (2, 16384), (133, 256), (0, 128)]
SHAPES = [(1, 8), (1, 4096), (3, 40), (2, 8192), (7, 1000), (9, 20000), (130, 136), (0, 64)]
# Numbers that are special, as words of 32 bits: the one that is never sent, zeros with signs,
# infinities and what is no number, in 16 and in 32 bits.
WORDS = [ABSENT, 0x80008000, 0x00008000, 0, 0x7FC07FC0, 0x7F807F80, 0xFF80FF80, 0x7C00FC00]
WORDS += [0x7F800000, 0xFF800000, 0x7FC00000, 0x3F803F80, 0xBF80BF80, 1]

# Ranks, and whether their sums are made in two shots.
FEW = [(2, False), (4, False), (4, True)]
every_size = pytest.mark.parametrize(
    ("size", "two_shot"), [(1, False), (3, False), (8, False), (3, True), (8, True), *FEW]
)
few_sizes = pytest.mark.parametrize(("size", "two_shot"), FEW)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


class Ranks(StreamRanks):
    """Ranks that sum, in two shots where each of them has a slice."""

    def __init__(self, size: int, two_shot: bool = False) -> None:
        super().__init__(size, CAPACITY)
        self.two_shot = two_shot

    def shots(self, items: int) -> bool:
        return self.two_shot and items >= self.size

    def sum(self, rank: int, x: Tensor) -> None:
        ops.all_reduce(x, *self.among(rank), two_shot=self.shots(x.nbytes // PACK_BYTES))

    def norm(self, rank: int, x: Tensor, residual: Tensor, weight: Tensor) -> None:
        norm, shots = (weight, EPS, OFFSET), self.shots(len(x))
        ops.all_reduce_add_rms_norm(x, residual, *norm, *self.among(rank), two_shot=shots)

    def norm_fp8(
        self, rank: int, x: Tensor, residual: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm, among = (weight, EPS, OFFSET), self.among(rank)
        shots = self.shots(len(x))
        return ops.all_reduce_add_rms_norm_fp8(x, residual, *norm, *among, two_shot=shots)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def special(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Words of WORDS with random numbers between them; the last axis is a multiple of 16 bytes."""
    words = torch.tensor([word if word < 2**31 else word - 2**32 for word in WORDS])
    picked = words[torch.randint(0, len(WORDS), (*shape, 4))].int().view(dtype)
    picked = picked.reshape(-1)[: torch.Size(shape).numel()].view(shape)
    return torch.where(torch.rand(shape) < 0.5, picked, torch.randn(shape).to(dtype))


def check_sums(ranks: Ranks, parts: list[Tensor]) -> None:
    dtype = parts[0].dtype
    given = [part.clone() for part in parts]
    with kernel_runs("all_reduce", ranks.size):
        ranks.run(lambda rank: ranks.sum(rank, given[rank]))
    expected = sum_of_parts(parts).to(dtype)
    for result in given:
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(bits(result), bits(given[0]))


def check_norms(ranks: Ranks, parts: list[Tensor], residual: Tensor, weight: Tensor) -> None:
    given, residuals = [part.clone() for part in parts], [residual.clone() for _ in parts]
    with kernel_runs("all_reduce_add_rms_norm", ranks.size):
        ranks.run(lambda rank: ranks.norm(rank, given[rank], residuals[rank], weight))
    normed, total = add_rms_norm_of_parts(parts, residual, weight, EPS, OFFSET)
    for result, added in zip(given, residuals, strict=True):
        torch.testing.assert_close(added, total, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(bits(result), bits(given[0]))
        assert torch.equal(bits(added), bits(residuals[0]))
        finite = normed.isfinite()
        assert torch.equal(finite, result.isfinite())
        assert_near(result.where(finite, 0), normed.where(finite, 0))


def warm_up(ranks: Ranks) -> None:
    """Kernels are loaded one after the other: loading may wait for those that run."""
    parts = [torch.randn(ranks.size, 64).bfloat16() for _ in range(ranks.size)]
    check_sums(ranks, parts)
    check_norms(ranks, parts, parts[0], torch.ones(64).bfloat16())
    if ranks.two_shot:
        warm_up(Ranks(ranks.size))  # what takes too few rows for two


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_size
@every_dtype
def test_sums_equal_the_reference_on_all_ranks(
    size: int, two_shot: bool, dtype: torch.dtype
) -> None:
    ranks = Ranks(size, two_shot)
    for shape in SHAPES:
        check_sums(ranks, [torch.randn(shape).mul(300).to(dtype) for _ in range(size)])


@every_size
@every_dtype
def test_norms_equal_the_reference_on_all_ranks(
    size: int, two_shot: bool, dtype: torch.dtype
) -> None:
    ranks = Ranks(size, two_shot)
    for shape in SHAPES:
        parts = [torch.randn(shape).to(dtype) for _ in range(size)]
        check_norms(ranks, parts, torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype))


@every_size
@every_dtype
@pytest.mark.parametrize("shape", QUANTISED, ids=str)
def test_norms_become_fp8_as_the_reference_says(
    size: int, two_shot: bool, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    ranks, offset = Ranks(size, two_shot), torch.tensor(OFFSET).to(dtype)
    parts = [torch.randn(shape).to(dtype) for _ in range(size)]
    weight = torch.rand(shape[1]).add(0.5).to(dtype) - offset
    given, before = [part.clone() for part in parts], torch.randn(shape).to(dtype)
    residuals, found = [before.clone() for _ in parts], dict[int, tuple[Tensor, Tensor]]()

    def work(rank: int) -> None:
        found[rank] = ranks.norm_fp8(rank, given[rank], residuals[rank], weight)

    with kernel_runs("all_reduce_add_rms_norm_fp8", size):
        ranks.run(work)
    total = (before.float() + sum_of_parts(parts)).to(dtype)
    normed = rms_norm_reference(total.float(), weight, EPS, OFFSET)
    for rank in range(size):
        q, scales = found[rank]
        assert torch.equal(given[rank], parts[rank]) and torch.equal(residuals[rank], total)
        assert_quantized(q, scales, normed)
        assert torch.equal(q.view(torch.uint8), found[0][0].view(torch.uint8))
        assert torch.equal(scales, found[0][1])


@few_sizes
@every_dtype
def test_special_numbers_come_through(size: int, two_shot: bool, dtype: torch.dtype) -> None:
    ranks = Ranks(size, two_shot)
    for _ in range(5):  # epochs come again
        check_sums(ranks, [special((5, 264), dtype) for _ in range(size)])
        parts = [special((64, 264), dtype) for _ in range(size)]
        check_norms(ranks, parts, special((64, 264), dtype), torch.randn(264).to(dtype))


@every_dtype
def test_a_message_of_nothing_but_the_absent_word(dtype: torch.dtype) -> None:
    absent = torch.full((3, 256), ABSENT, dtype=torch.int32).view(dtype)
    ranks = Ranks(2)
    given = [absent.clone() for _ in range(2)]
    ranks.run(lambda rank: ranks.sum(rank, given[rank]))
    for result in given:
        assert not bits(result).any(), "sums of zeros are +0.0"


def test_rows_may_be_apart() -> None:
    ranks, width = Ranks(2), 72
    wide = [torch.randn(6, 128).bfloat16() for _ in range(2)]
    residuals = [torch.ones(6, 96).bfloat16() for _ in range(2)]
    weight, before = torch.randn(width).bfloat16(), [each.clone() for each in wide]
    inside = [each[:, 8 : 8 + width] for each in wide]
    parts = [each.clone() for each in inside]
    ranks.run(lambda rank: ranks.norm(rank, inside[rank], residuals[rank][:, :width], weight))
    normed, total = add_rms_norm_of_parts(parts, torch.ones_like(parts[0]), weight, EPS, OFFSET)
    for rank in range(2):
        assert torch.equal(residuals[rank][:, :width], total)
        assert_near(inside[rank], normed)
        assert torch.equal(wide[rank][:, :8], before[rank][:, :8])
        assert torch.equal(wide[rank][:, 8 + width :], before[rank][:, 8 + width :])


@few_sizes
def test_calls_of_all_sizes_follow_each_other_without_a_wait(size: int, two_shot: bool) -> None:
    """Those of fewer rows than ranks in one shot."""
    ranks, count = Ranks(size, two_shot), 200
    warm_up(ranks)
    rows = torch.randint(1, 200, (count,), device="cpu").tolist()
    rows[::7] = [1 + i % 3 for i in range(len(rows[::7]))]
    widths = (8 * torch.randint(1, 300, (count,), device="cpu")).tolist()
    shapes = list(zip(rows, widths, strict=True))
    parts = [[torch.randn(shape).bfloat16() for _ in range(size)] for shape in shapes]
    given = [[part.clone() for part in each] for each in parts]
    residuals = [[torch.zeros(shape).bfloat16() for _ in range(size)] for shape in shapes]
    weights = [torch.ones(width).bfloat16() for width in widths]

    def work(rank: int) -> None:
        for call in range(count):
            if call % 3 == 0:
                ranks.sum(rank, given[call][rank])
            else:
                ranks.norm(rank, given[call][rank], residuals[call][rank], weights[call])

    ranks.run(work)
    for call in range(count):
        expected = sum_of_parts(parts[call]).bfloat16()
        for rank in range(size):
            result = given[call][rank] if call % 3 == 0 else residuals[call][rank]
            assert torch.equal(result, expected), (call, rank)
            assert torch.equal(given[call][rank], given[call][0])


@few_sizes
def test_replays_of_graphs_take_what_their_inputs_hold_by_then(size: int, two_shot: bool) -> None:
    ranks, replays, sets, shape = Ranks(size, two_shot), 1000, 7, (5, 2048)
    warm_up(ranks)
    inputs = torch.randn(sets, size, *shape).bfloat16()
    expected = torch.stack([sum_of_parts(list(each)).bfloat16() for each in inputs])
    weight = torch.randn(shape[1]).bfloat16()
    x, sums, residual = (torch.zeros(size, *shape).bfloat16() for _ in range(3))

    def step(rank: int) -> None:
        sums[rank].copy_(x[rank])
        ranks.sum(rank, sums[rank])
        residual[rank].zero_()
        ranks.norm(rank, x[rank], residual[rank], weight)

    graph = ranks.captured(step)
    wrong, normed = torch.zeros((), dtype=torch.int64), []

    def work(_: int) -> None:
        for turn in range(replays):
            x.copy_(inputs[turn % sets])
            graph.replay()
            wrong.add_((sums != expected[turn % sets]).sum())
            wrong.add_((residual != expected[turn % sets]).sum())
            wrong.add_((bits(x) != bits(x[0])).sum())
            normed.append(bits(x).long().sum())

    ranks.run(work, range(1))
    assert not wrong
    assert len(set(map(int, normed))) == sets
    torch.testing.assert_close(torch.stack(normed[:sets]), torch.stack(normed[-sets - 6 : -6]))


@pytest.mark.parametrize("two_shot", [False, True])
def test_the_host_ends_the_wait_for_a_rank_that_does_not_come(two_shot: bool) -> None:
    ranks = Ranks(3, two_shot)
    x, residual = torch.ones(40, 4096).bfloat16(), torch.ones(40, 4096).bfloat16()
    warm_up(ranks)
    weight = torch.ones(4096).bfloat16()

    def work(rank: int) -> None:
        ranks.sum(rank, x)
        ranks.norm(rank, x, residual, weight)

    ranks.start(work, range(2))
    assert not ranks.done(0.3), "nobody is there to sum with"
    ranks.abort_word.fill_(1)
    assert ranks.done(10.0)


def test_what_does_not_fit_is_refused() -> None:
    ranks = Ranks(2)
    x, weight = torch.ones(4, 64).bfloat16(), torch.ones(64).bfloat16()
    with pytest.raises(RuntimeError, match=r"expected at most 4194304 bytes"):
        ranks.sum(0, torch.ones(CAPACITY // 4 + 4))
    with pytest.raises(RuntimeError, match=r"ranks: rank is 2; expected one of 2"):
        ops.all_reduce(x, ranks.buffers, ranks.states[0], 2, CAPACITY)
    with pytest.raises(RuntimeError, match=r"ranks: state is int32 \[3\]"):
        ops.all_reduce(x, ranks.buffers, ranks.states[0, :3], 0, CAPACITY)
    with pytest.raises(RuntimeError, match=r"ranks: buffers is int64 \[1\]"):
        ops.all_reduce(x, ranks.buffers[:1], ranks.states[0], 0, CAPACITY)
    with pytest.raises(RuntimeError, match="capacity is 8"):
        ops.all_reduce(x, ranks.buffers, ranks.states[0], 0, 8)
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        ranks.sum(0, torch.ones(3))
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        ranks.norm(0, x[:, 4:12], torch.ones(4, 8).bfloat16(), weight[:8])
    with pytest.raises(RuntimeError, match="two shots of 32 packs or rows on 2 ranks"):
        ops.all_reduce(x, *ranks.among(0), two_shot=True)
    many = Ranks(4, two_shot=True)
    with pytest.raises(RuntimeError, match="two shots of 3 packs or rows on 4 ranks"):
        norm = (torch.ones(8), EPS, OFFSET)
        ops.all_reduce_add_rms_norm(
            torch.ones(3, 8), torch.ones(3, 8), *norm, *many.among(0), two_shot=True
        )
    with pytest.raises(RuntimeError, match=r"takes 4194336 bytes of a buffer; expected at most"):
        many.sum(0, torch.ones(2 * CAPACITY // 4 + 4))
    with pytest.raises(RuntimeError, match="the same memory"):
        ranks.norm(0, x, x, weight)
    with pytest.raises(RuntimeError, match="expected rows of a multiple of 128 elements"):
        ranks.norm_fp8(0, x, x.clone(), weight)
    with pytest.raises(RuntimeError, match=r"residual is bfloat16 \[3, 64\]"):
        ranks.norm(0, x, x[:3].clone(), weight)

# SPDX-License-Identifier: Apache-2.0
"""FP8 GEMMs against float32 products of the dequantised operands: every form, both ways round."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.fp8 import fp8_blocks, fp8_gemm_choice
from rtp_llm.testing.operator_checks import DEVICE

NATIVE = ops.has_kernel("fp8_linear", DEVICE)
# (N, K): one tile, half a tile at the end, many groups of K, more tiles than multiprocessors.
SHAPES = [(64, 128), (192, 256), (576, 1024), (320, 640)]
if NATIVE:
    SHAPES += [(576, 7168), (2112, 512), (24576, 1536), (7168, 2048), (4096, 7168), (7168, 16384)]
ROWS = list(range(1, 131))
FEW_ROWS = [1, 2, 8, 17, 64, 130]

# The reference knows one way only.
both_ways = pytest.mark.parametrize("swap_ab", [True, False] if NATIVE else [False], ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


class Weight:
    """A random weight [..., N, K], quantised, and what it is worth."""

    def __init__(self, *shape: int) -> None:
        # Tiles of very different sizes, so that a scale in a wrong place shows.
        tiles = [-(-size // 128) for size in shape[-2:]]
        sizes = torch.exp(torch.randn(*shape[:-2], *tiles))
        sizes = sizes.repeat_interleave(128, -1)[..., : shape[-1]]
        sizes = sizes.repeat_interleave(128, -2)[..., : shape[-2], :]
        self.q, self.scales = fp8_blocks.quantize_weight(torch.randn(shape) * sizes)
        self.value = fp8_blocks.dequantize_weight(self.q, self.scales)


def random_rows(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, its scales and what they are worth."""
    x = torch.randn(shape) * torch.exp(torch.randn(*shape[:-1], 1))
    q, scales = ops.fp8_quantize(x.to(torch.bfloat16))
    return q, scales, fp8_blocks.dequantize_rows(q, fp8_blocks.row_major(scales, shape[-2]))


def poisoned_after(q: Tensor, scales: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """q [G, M, K] and its scales with NaNs past the first counts[g] rows of each group."""
    q, scales = q.clone(), scales.clone()
    for group, rows in enumerate(counts):
        q[group, rows:].view(torch.uint8).fill_(0x7F)
        scales[group, :, rows:] = torch.nan
    return q, scales


def assert_product(actual: Tensor, x: Tensor, weight: Tensor) -> None:
    """bfloat16 of x @ weight.T: the whole within 2.5e-3, of which rounding makes up to 2e-3, and no
    element out of place."""
    assert actual.dtype == torch.bfloat16
    expected = x.double() @ weight.double().mT
    assert actual.shape == expected.shape
    if expected.numel() == 0:
        return
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < 2.5e-3, f"relative error {error}"
    # The tensor cores align what they add up, so that few of millions of elements are further off.
    limit = float(expected.square().mean().sqrt()) * 1e-2
    torch.testing.assert_close(actual.double(), expected, rtol=8e-3, atol=limit)


@both_ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(shape: tuple[int, int], *, swap_ab: bool) -> None:
    weight = Weight(*shape)
    every = shape[0] * shape[1] < 2**20 if NATIVE else shape == SHAPES[1]
    rows = ROWS if every else FEW_ROWS
    for count in [*rows, 0, 1000 if NATIVE else 140]:
        q, scales, x = random_rows(count, shape[1])
        longer = torch.cat([q, q[:1].expand(5, -1)]) if count else q
        (longer,), (scales,) = poisoned_after(longer[None], scales[None], [count])
        actual = ops.fp8_linear(longer[:count], scales, weight.q, weight.scales, swap_ab=swap_ab)
        assert_product(actual, x, weight.value)


def test_the_table_chooses_and_both_ways_agree() -> None:
    weight = Weight(1024, 1024)
    choice = fp8_gemm_choice.current()
    for rows in (choice.linear_rows, choice.linear_rows + 1):
        q, scales, _ = random_rows(rows, 1024)
        chosen = ops.fp8_linear(q, scales, weight.q, weight.scales)
        for swap_ab in (True, False):
            other = ops.fp8_linear(q, scales, weight.q, weight.scales, swap_ab=swap_ab)
            cosine = torch.nn.functional.cosine_similarity(
                chosen.double().flatten(), other.double().flatten(), dim=0
            )
            assert 1 - cosine < 1e-5


@pytest.mark.parametrize("rows", [66, 129, 132, 256, 1000])
def test_many_rows_whoever_multiplies(rows: int) -> None:
    """On GPUs cuBLASLt takes some of these numbers of rows, our kernels the others."""
    weight = Weight(256, 1024)
    q, scales, x = random_rows(rows, 1024)
    assert_product(ops.fp8_linear(q, scales, weight.q, weight.scales), x, weight.value)
    one_call = ops.deep_gemm_fp8(x, weight.q, weight.scales)
    cosine = torch.nn.functional.cosine_similarity(
        one_call.double().flatten(), (x.double() @ weight.value.double().T).flatten(), dim=0
    )
    assert 1 - cosine < 1e-3


@pytest.mark.skipif(not NATIVE, reason="the reference knows no libraries")
@pytest.mark.parametrize("shape", [(24576, 1536), (4096, 7168), (7168, 2048), (6144, 16384)])
def test_sizes_at_which_libraries_were_quicker(shape: tuple[int, int]) -> None:
    """DeepGEMM takes some of them where it is installed."""
    weight = Weight(*shape)
    for rows in (48, 64, 65, 128, 129, 256, 1000):
        q, scales, x = random_rows(rows, shape[1])
        assert_product(ops.fp8_linear(q, scales, weight.q, weight.scales), x, weight.value)


@pytest.mark.skipif(not NATIVE, reason="the reference knows no libraries")
def test_masked_sizes_at_which_libraries_were_quicker() -> None:
    weight = Weight(8, 4096, 7168)
    counts = [100, 0, 128, 3, 64, 65, 127, 1]
    q, scales, x = random_rows(8, 128, 7168)
    q, scales = poisoned_after(q, scales, counts)
    masked_m = torch.tensor(counts, dtype=torch.int32)
    actual = ops.fp8_grouped_masked(q, scales, weight.q, weight.scales, masked_m, 100)
    for group, rows in enumerate(counts):
        assert_product(actual[group, :rows], x[group, :rows], weight.value[group])


@pytest.mark.parametrize("num_sms", [1, 7, 100, 10000])
def test_any_number_of_multiprocessors(num_sms: int) -> None:
    weight = Weight(576, 1024)
    for rows in (5, 70):
        q, scales, x = random_rows(rows, 1024)
        assert_product(ops.fp8_linear(q, scales, weight.q, weight.scales, num_sms), x, weight.value)
        with fp8_gemm_choice.limited_sms(num_sms):
            assert_product(ops.fp8_linear(q, scales, weight.q, weight.scales), x, weight.value)


@both_ways
@pytest.mark.parametrize("expected_m", [0, 1, 30, 10**6])
@pytest.mark.parametrize(
    ("most", "shape"),
    [(24, (192, 512)), (130, (320, 256)), (1, (64, 128)), (140, (1024, 384))],
    ids=str,
)
def test_grouped_masked(
    most: int, shape: tuple[int, int], expected_m: int, *, swap_ab: bool
) -> None:
    groups = 9
    weight = Weight(groups, *shape)
    counts = [0, most, 1, *(random.randint(0, most) for _ in range(groups - 3))]
    masked_m = torch.tensor(counts, dtype=torch.int32)
    x = torch.randn(groups, most, shape[1], dtype=torch.bfloat16)
    for group, rows in enumerate(counts):
        x[group, rows:] = torch.nan
    q, scales = ops.fp8_quantize(x)
    output = torch.full((groups, most, shape[0]), 7.0, dtype=torch.bfloat16)
    ops.deep_gemm_grouped_fp8_masked(
        q, weight.q, weight.scales, output, masked_m, expected_m, lhs_scale=scales, swap_ab=swap_ab
    )
    fresh = ops.fp8_grouped_masked(
        q, scales, weight.q, weight.scales, masked_m, expected_m, swap_ab=swap_ab
    )
    value = fp8_blocks.dequantize_rows(q, fp8_blocks.row_major(scales, most))
    for group, rows in enumerate(counts):
        assert_product(output[group, :rows], value[group, :rows], weight.value[group])
        assert torch.equal(output[group, :rows], fresh[group, :rows])
        assert (output[group, rows:] == 7).all()


@both_ways
def test_every_number_of_rows_of_a_masked_group(*, swap_ab: bool) -> None:
    """0 to 130 rows, in any order of groups."""
    counts = torch.randperm(131).tolist()
    weight = Weight(len(counts), 64, 128)
    q, scales, x = random_rows(len(counts), 130, 128)
    q, scales = poisoned_after(q, scales, counts)
    masked_m = torch.tensor(counts, dtype=torch.int32)
    actual = ops.fp8_grouped_masked(
        q, scales, weight.q, weight.scales, masked_m, 65, swap_ab=swap_ab
    )
    for group, rows in enumerate(counts):
        assert_product(actual[group, :rows], x[group, :rows], weight.value[group])


@both_ways
@pytest.mark.parametrize("expected_m", [0, 3, 65, 10**6])
@pytest.mark.parametrize("shape", [(64, 128), (192, 512), (320, 256), (1024, 384)], ids=str)
def test_grouped_ragged(shape: tuple[int, int], expected_m: int, *, swap_ab: bool) -> None:
    """0 to 130 rows in any order of groups, with gaps; rows in the gaps are NaNs."""
    counts = [*random.sample(range(131), 131 if shape == (64, 128) else 7), 0, 300, 0]
    weight = Weight(len(counts), *shape)
    ends = itertools.accumulate(-(-count // 4) * 4 + random.choice((0, 4)) for count in counts)
    starts = torch.tensor([4, *(4 + end for end in ends)], dtype=torch.int32)
    q, scales, x = random_rows(int(starts[-1]), shape[1])
    gap = torch.ones(len(q), dtype=torch.bool)
    for first, count in zip(starts.tolist(), counts, strict=False):
        gap[first : first + count] = False
    q.view(torch.uint8)[gap] = 0x7F
    scales[:, gap] = torch.nan
    actual = ops.fp8_grouped_ragged(
        q, scales, weight.q, weight.scales, starts, torch.tensor(counts, dtype=torch.int32),
        expected_m, swap_ab=swap_ab,
    )  # fmt: skip
    assert actual.shape == (len(q), shape[0])
    for group, (first, count) in enumerate(zip(starts.tolist(), counts, strict=False)):
        rows = slice(first, first + count)
        assert_product(actual[rows], x[rows], weight.value[group])


def test_every_number_of_rows_of_a_contiguous_group() -> None:
    """1 to 128 of the 128 rows that a group has alone, in any order of groups."""
    counts = (torch.randperm(128) + 1).tolist()
    weight = Weight(len(counts), 64, 128)
    q, scales, x = random_rows(128 * len(counts), 128)
    m_indices = torch.full((len(counts), 128), -1, dtype=torch.int32)
    for group, rows in enumerate(counts):
        m_indices[group, :rows] = group
        padding = slice(group * 128 + rows, group * 128 + 128)
        q[padding].view(torch.uint8).fill_(0x7F)
        scales[:, padding] = torch.nan
    actual = ops.fp8_grouped_contiguous(q, scales, weight.q, weight.scales, m_indices.flatten())
    for group, rows in enumerate(counts):
        part = slice(group * 128, group * 128 + rows)
        assert_product(actual[part], x[part], weight.value[group])


def test_rows_outside_of_the_buffer_are_not_touched() -> None:
    """Counts that no buffer holds are cut off."""
    weight = Weight(2, 64, 128)
    q, scales, x = random_rows(2, 8, 128)
    counts = torch.tensor([-3, 1000], dtype=torch.int32)
    output = torch.full((2, 8, 64), 7.0, dtype=torch.bfloat16)
    ops.deep_gemm_grouped_fp8_masked(
        q, weight.q, weight.scales, output, counts, 8, lhs_scale=scales
    )
    assert (output[0] == 7).all()
    assert_product(output[1], x[1], weight.value[1])


@pytest.mark.parametrize("shape", [(192, 512), (320, 256), (512, 384)], ids=str)
def test_grouped_contiguous(shape: tuple[int, int]) -> None:
    groups = [3, 0, -1, 2, 2, 5]  # 128 rows each: shuffled, two of one, one of padding
    weight = Weight(6, *shape)
    rows = [random.randint(1, 128) for _ in groups]
    m_indices = torch.full((len(groups), 128), -1, dtype=torch.int32)
    for tile, (group, count) in enumerate(zip(groups, rows, strict=True)):
        m_indices[tile, :count] = group
    q, scales, x = random_rows(128 * len(groups), shape[1])
    actual = ops.fp8_grouped_contiguous(q, scales, weight.q, weight.scales, m_indices.flatten())
    for tile, (group, count) in enumerate(zip(groups, rows, strict=True)):
        if group >= 0:
            part = slice(tile * 128, tile * 128 + count)
            assert_product(actual[part], x[part], weight.value[group])


def test_one_call() -> None:
    weight = Weight(3, 256, 384)
    x = torch.randn(3, 20, 384, dtype=torch.bfloat16)
    actual = ops.deep_gemm_fp8(x[0], weight.q[0], weight.scales[0])
    expected = x[0].double() @ weight.value[0].double().T
    cosine = torch.nn.functional.cosine_similarity(actual.double().flatten(), expected.flatten(), 0)
    assert 1 - cosine < 1e-3
    masked_m = torch.tensor([20, 0, 5], dtype=torch.int32)
    outputs = []
    q, scales = ops.fp8_quantize(x)
    for lhs, lhs_scale in ((x, None), (q, scales)):
        output = torch.zeros(3, 20, 256, dtype=torch.bfloat16)
        ops.deep_gemm_grouped_fp8_masked(
            lhs, weight.q, weight.scales, output, masked_m, 8, lhs_scale=lhs_scale
        )
        outputs.append(output)
    assert torch.equal(*outputs)
    torch.testing.assert_close(outputs[0][0].float(), actual.float(), rtol=2e-2, atol=2e-1)


def test_mismatches_are_refused() -> None:
    weight = Weight(128, 256)
    q, scales, _ = random_rows(4, 256)
    good = (q, scales, weight.q, weight.scales)
    bad = {
        "columns": (q[:, :128].contiguous(), scales[:1], weight.q, weight.scales),
        "scales": (q, scales[:1], weight.q, weight.scales),
        "weight_scales": (q, scales, weight.q, weight.scales[:, :1]),
        "dtype": (q, scales, weight.value, weight.scales),
        "outputs": (q, scales, weight.q[:100], weight.scales),
    }
    ops.fp8_linear(*good)
    for what, arguments in bad.items():
        with pytest.raises(RuntimeError):
            ops.fp8_linear(*arguments)
            pytest.fail(f"{what} was taken")
    with pytest.raises(RuntimeError):
        ops.fp8_linear(q[None], scales[None], weight.q[None], weight.scales[None])
        pytest.fail("three axes were taken")
    with pytest.raises(RuntimeError, match="lhs_scale"):
        ops.deep_gemm_grouped_fp8_masked(
            q[None],
            weight.q[None],
            weight.scales[None],
            torch.zeros(1, 4, 128, dtype=torch.bfloat16),
            torch.tensor([4], dtype=torch.int32),
            4,
        )


def test_mismatches_of_groups_are_refused() -> None:
    grouped = Weight(2, 128, 256)
    masked_m = torch.tensor([4, 4], dtype=torch.int32)
    pair, pair_scales, _ = random_rows(2, 4, 256)
    two = (pair, pair_scales, grouped.q, grouped.scales)
    bad_groups = {
        "groups": (pair[:1], pair_scales[:1], grouped.q, grouped.scales, masked_m[:1]),
        "counts": (*two, masked_m[:1]),
        "wide counts": (*two, masked_m.long()),
        "one weight": (pair, pair_scales, grouped.q[0], grouped.scales[0], masked_m),
    }
    ops.fp8_grouped_masked(*two, masked_m, 4)
    for what, arguments in bad_groups.items():
        with pytest.raises(RuntimeError):
            ops.fp8_grouped_masked(*arguments, 4)
            pytest.fail(f"{what} was taken")
    q, scales, _ = random_rows(4, 256)
    with pytest.raises(RuntimeError):
        ops.fp8_grouped_contiguous(q, scales, grouped.q, grouped.scales, masked_m)
        pytest.fail("fewer indices than rows were taken")
    starts = torch.tensor([0, 4, 4], dtype=torch.int32)
    ops.fp8_grouped_ragged(q, scales, grouped.q, grouped.scales, starts, masked_m, 2)
    for wrong in ((masked_m, masked_m), (starts, starts), (starts.long(), masked_m)):
        with pytest.raises(RuntimeError):
            ops.fp8_grouped_ragged(q, scales, grouped.q, grouped.scales, *wrong, 2)
            pytest.fail(f"starts and counts {wrong} were taken")

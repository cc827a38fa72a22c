# SPDX-License-Identifier: Apache-2.0
"""Products with weights in MXFP4, against their reference and product by product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.moe.mxfp4_blocks import dequantize_rows
from rtp_llm.ops.moe.mxfp4_reference import mxfp4_grouped_linear_reference
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    cpu_only,
    kernel_runs,
    running,
)

NATIVE = ops.has_kernel("mxfp4_grouped_linear", TORCH_TYPE)
native_only = pytest.mark.skipif(not NATIVE, reason="limits of kernels that this device lacks")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there is no kernel, the reference is tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


def weights(experts: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Blocks of all codes; scales from 2^-7 to 2^2, and one 2^-127 in each expert."""
    blocks = torch.randint(256, (experts, n, k // 2), dtype=torch.uint8)
    scales = torch.randint(120, 130, (experts, n, k // 32), dtype=torch.uint8)
    scales[:, n // 2, 0] = 0
    return blocks.view(torch.int8), scales.view(torch.int8)


def bounds(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("counts", "n", "k"), [([3], 5, 32), ([0, 4, 0, 1, 2, 37], 51, 96), ([1] * 9, 100, 64)]
)
def test_it_equals_the_reference(
    isa: str, dtype: torch.dtype, counts: list[int], n: int, k: int
) -> None:
    """One to four rows of an expert, which meet blocks, and more, which meet decoded weights."""
    rows = sum(counts)
    x, (blocks, scales) = torch.randn(rows + 2, k).to(dtype), weights(len(counts), n, k)
    x[rows:] = torch.nan  # rows of no expert
    bias = torch.randn(len(counts), n).to(dtype)
    for added in (None, bias):
        with running(isa), kernel_runs("mxfp4_grouped_linear"):
            actual = ops.mxfp4_grouped_linear(x, blocks, scales, bounds(counts), added)
        given = (x.double().float(), blocks, scales, bounds(counts))
        expected = mxfp4_grouped_linear_reference(*given, None if added is None else bias.float())
        limit = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
        error = (actual[:rows].float() - expected[:rows]).abs().max()
        assert error <= limit * expected[:rows].abs().max()


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 8, 9, 70])
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(
    isa: str, dtype: torch.dtype, rows: int
) -> None:
    x, (blocks, scales) = torch.randn(rows, 224).to(dtype), weights(2, 60, 224)
    bias = torch.randn(2, 60).to(dtype)
    with running(isa):
        together = ops.mxfp4_grouped_linear(x, blocks, scales, bounds([0, rows]), bias)
        for row in (0, rows - 1):
            one, first = x[row : row + 1].contiguous(), bounds([0, 1])
            alone = ops.mxfp4_grouped_linear(one, blocks, scales, first, bias)
            assert torch.equal(alone[0], together[row])


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_code_and_scale_is_decoded_exactly(isa: str, dtype: torch.dtype) -> None:
    """Each column alone: a product with one is the weight itself, bit for bit.

    But for the smallest scales: instructions for bfloat16 take numbers below 2^-126 for zero.
    """
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(1, 16, 1)
    scales = torch.arange(256, dtype=torch.uint8).view(1, 256, 1)
    exact = dequantize_rows(blocks[0], scales[0]).to(dtype)
    finite = exact.isfinite().all(1)
    least = 2 if dtype is torch.bfloat16 else 0
    given = blocks.view(torch.int8), scales.view(torch.int8)
    for rows in (1, 32):
        with running(isa):
            found = ops.mxfp4_grouped_linear(torch.eye(32)[:rows].to(dtype), *given, bounds([rows]))
        assert torch.equal(found.T[finite][least:], exact[finite, :rows][least:])
        assert not found.T[~finite].isfinite().all(1).any()


@native_only
def test_more_rows_than_a_panel_holds() -> None:
    """Experts whose rows are on either side of the border."""
    k, counts = 65536, [30, 50, 20]
    x, (blocks, scales) = torch.randn(100, k), weights(3, 8, k)
    together = ops.mxfp4_grouped_linear(x, blocks, scales, bounds(counts))
    expected = mxfp4_grouped_linear_reference(x, blocks, scales, bounds(counts))
    assert (together - expected).abs().max() < 1e-5 * expected.abs().max()


def test_nothing() -> None:
    blocks, scales = weights(2, 8, 32)
    out = ops.mxfp4_grouped_linear(torch.empty(0, 32), blocks, scales, bounds([0, 0]))
    assert out.shape == (0, 8)


@native_only
def test_wrong_arguments_are_named() -> None:
    blocks, scales = weights(1, 8, 64)
    x = torch.zeros(2, 64)
    with pytest.raises(RuntimeError, match="columns in whole blocks of 32"):
        ops.mxfp4_grouped_linear(torch.zeros(2, 48), blocks, scales, bounds([2]))
    with pytest.raises(RuntimeError, match="a byte for every two columns"):
        ops.mxfp4_grouped_linear(torch.zeros(2, 32), blocks, scales, bounds([2]))
    with pytest.raises(RuntimeError, match="mxfp4_grouped_linear: scales"):
        ops.mxfp4_grouped_linear(x, blocks, scales[..., :1].contiguous(), bounds([2]))
    with pytest.raises(RuntimeError, match="mxfp4_grouped_linear: bias"):
        ops.mxfp4_grouped_linear(x, blocks, scales, bounds([2]), torch.zeros(1, 7))


@cpu_only
def test_rows_outside_of_x_are_named() -> None:
    blocks, scales = weights(1, 8, 64)
    x = torch.zeros(2, 64)
    with pytest.raises(IndexError, match=r"offsets\[1\] is 3; expected from 0 to the 2 rows"):
        ops.mxfp4_grouped_linear(x, blocks, scales, bounds([3]))


def test_the_operator_is_traceable() -> None:
    blocks, scales = weights(2, 8, 64)
    args = (torch.randn(5, 64), blocks, scales, bounds([2, 3]), torch.randn(2, 8))
    operator = torch.ops.rtp_llm.mxfp4_grouped_linear.default
    torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))

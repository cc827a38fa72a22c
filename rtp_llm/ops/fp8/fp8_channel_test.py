# SPDX-License-Identifier: Apache-2.0
"""FP8 with a scale for each token and each output channel: kernels against the references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.fp8 import fp8_library
from rtp_llm.ops.fp8.fp8_blocks import E4M3
from rtp_llm.ops.fp8.fp8_channel_reference import (
    fp8_channel_linear_reference,
    fp8_quantize_tokens_reference,
)
from rtp_llm.testing.operator_checks import DEVICE, FLOAT_DTYPES

# (M, N, K): what a library takes; sizes that are no multiples of 16; no rows.
SHAPES = [(1, 64, 128), (40, 192, 256), (130, 576, 1024), (5, 72, 200), (17, 33, 100), (0, 64, 128)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random_operand(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Rows of very different sizes, so that a scale in a wrong place shows."""
    x = torch.randn(rows, columns) * torch.exp(torch.randn(rows, 1))
    return fp8_quantize_tokens_reference(x)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (5, 200), (33, 4096), (0, 128), (2, 7168)])
def test_rows_have_one_scale_each(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * torch.exp(torch.randn(shape[0], 1))).to(dtype)
    if shape[0] > 1:
        x[1] = 0
    q, scales = ops.fp8_quantize_tokens(x)
    expected_q, expected = fp8_quantize_tokens_reference(x)
    assert q.dtype == E4M3 and q.shape == x.shape and scales.shape == (len(x), 1)
    torch.testing.assert_close(scales, expected)
    # Numbers half-way between two of e4m3, which are many in a row with a round maximum, may be
    # rounded either way on a device.
    off = (q.float() - expected_q.float()).abs() > 0
    assert off.float().mean() < 1e-2 if off.numel() else True
    wide = q.float() * scales
    assert ((wide - x.float()).abs() <= x.float().abs() / 16 + scales).all()


def assert_product(actual: Tensor, operands: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """`actual` [M, N] in bfloat16 is the product of x, its scales [M, 1], weight, scales [N, 1].

    Tensor cores add up FP8 products with 14 bits, so that the error grows with what is added up,
    not with the sum.
    """
    x, scales, weight, weight_scales = operands
    left, right = x.double() * scales, weight.double() * weight_scales
    exact, added = left @ right.T, left.abs() @ right.abs().T
    allowed = 1e-2 * exact.abs() + 3e-3 * added / x.shape[1] ** 0.5
    assert ((actual.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize(("rows", "size", "depth"), SHAPES)
def test_the_product_is_that_of_the_operands(rows: int, size: int, depth: int) -> None:
    operands = (*random_operand(rows, depth), *random_operand(size, depth))
    actual = ops.fp8_channel_linear(*operands)
    assert actual.dtype is torch.bfloat16 and actual.shape == (rows, size)
    assert_product(actual, operands)
    assert_product(fp8_channel_linear_reference(*operands), operands)


@pytest.mark.parametrize(("rows", "size", "depth"), SHAPES[:3])
def test_the_library_gives_the_same(rows: int, size: int, depth: int) -> None:
    """On any device: which of its arguments are which, and of what shapes."""
    operands = (*random_operand(rows, depth), *random_operand(size, depth))
    assert_product(fp8_library.channel_product(*operands), operands)
    assert fp8_library.takes_channels(operands[0], operands[2]) == (DEVICE == "cuda")


def test_what_does_not_fit_together_is_refused() -> None:
    (q, scales), (weight, weight_scales) = random_operand(3, 100), random_operand(40, 100)
    with pytest.raises(RuntimeError, match=r"fit|rows|scales"):
        ops.fp8_channel_linear(q, scales, weight, weight_scales[:39])
    with pytest.raises(RuntimeError):
        ops.fp8_channel_linear(q, scales, weight[:, :96].contiguous(), weight_scales)
    with pytest.raises(RuntimeError):
        ops.fp8_quantize_tokens(torch.zeros(3, 8, dtype=torch.int32))

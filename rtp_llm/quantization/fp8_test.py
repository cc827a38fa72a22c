# SPDX-License-Identifier: Apache-2.0
"""FP8 blocks: the formula, error bound, parts and bands of rows, edge values, places of parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm.quantization.fp8 import (
    BlockRows,
    dequantize_blocks,
    dequantize_rows,
    quantize_blocks,
)

SHAPES = [(1, 1), (3, 130), (128, 128), (129, 64), (300, 257), (256, 512)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def plain(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Block by block, with a division where the operators multiply by an inverse."""
    rows, columns = weight.shape
    numbers = torch.empty(rows, columns)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    for row in range(0, rows, 128):
        for column in range(0, columns, 128):
            block = weight[row : row + 128, column : column + 128].float()
            scale = block.abs().max().clamp(min=1e-4) / 448
            scales[row // 128, column // 128] = scale
            numbers[row : row + 128, column : column + 128] = block / scale
    return numbers, scales


@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_blocks_are_those_of_the_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = (torch.randn(shape) * torch.logspace(-2, 2, shape[0])[:, None]).to(dtype)
    quotients, expected = plain(weight)
    numbers, scales = quantize_blocks(weight)
    assert numbers.dtype == torch.float8_e4m3fn and numbers.is_contiguous()
    assert torch.equal(scales, expected)
    # The nearest e4m3 number: three mantissa bits, steps of 2^-9 below 2^-6.
    error = (numbers.float() - quotients).abs()
    assert (error <= quotients.abs().mul(2**-4).clamp(min=2**-10) * 1.0001).all()
    assert numbers.float().abs().max() == 448
    exact = (
        numbers.double()
        * scales.double()
        .repeat_interleave(128, 0)
        .repeat_interleave(128, 1)[: shape[0], : shape[1]]
    )
    assert torch.equal(dequantize_blocks(numbers, scales), exact.float())


def test_every_number_is_widened_exactly() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = numbers[~numbers.float().isnan()][None]
    scales = torch.full((1, 2), 0.75)
    assert torch.equal(dequantize_blocks(numbers, scales), numbers.float() * 0.75)


def test_bands_of_rows_stand_alone() -> None:
    weight = torch.randn(2, 400, 200)
    numbers, scales = quantize_blocks(weight)
    for part, whole in zip(quantize_blocks(weight[1, 128:384]), (numbers, scales), strict=True):
        first = 128 if whole is numbers else 1
        assert torch.equal(part, whole[1, first : first + len(part)])
    wide = dequantize_blocks(numbers, scales)
    for start, stop in ((0, 5), (77, 290), (128, 256), (399, 400), (10, 10)):
        rows = dequantize_rows(numbers[:, start:stop], scales, start)
        assert torch.equal(rows, wide[:, start:stop])


def test_blocks_of_zeros_and_tiny_numbers() -> None:
    weight = torch.zeros(2, 256)
    weight[0, 128:] = 1e-6
    numbers, scales = quantize_blocks(weight)
    assert torch.equal(scales, torch.full((1, 2), 1e-4) / 448)
    result = dequantize_blocks(numbers, scales)
    assert torch.equal(result[:, :128], weight[:, :128])
    torch.testing.assert_close(result, weight, rtol=0.1, atol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    weight = torch.ones(130, 70)
    weight[129, 69] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize_blocks(weight)


def test_a_stored_nan_is_refused() -> None:
    numbers, scales = quantize_blocks(torch.ones(3, 4))
    numbers[2, 1] = torch.nan
    with pytest.raises(ValueError, match="not a number"):
        dequantize_blocks(numbers, scales)


@pytest.mark.parametrize(
    ("parts", "starts", "total", "gaps"),
    [
        ((256, 128, 128), (0, 256, 384), 512, False),
        ((256, 128, 100), (0, 256, 384), 512, False),
        ((100,), (0,), 128, False),
        ((160, 30, 128), (0, 256, 384), 512, True),
    ],
)
def test_parts_begin_at_blocks(
    parts: tuple[int, ...], starts: tuple[int, ...], total: int, gaps: bool
) -> None:
    places = BlockRows(parts)
    assert (places.starts, places.total, places.has_gaps) == (starts, total, gaps)
    product = torch.full((3, total), torch.nan)
    for number, (start, rows) in enumerate(zip(starts, parts, strict=True)):
        product[:, start : start + rows] = number
    joined = places.join(product)
    assert joined.is_contiguous()
    expected = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts)).expand(3, -1)
    assert torch.equal(joined, expected.float())
    assert places.join(product[:0]).shape == (0, sum(parts))

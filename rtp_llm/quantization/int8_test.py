# SPDX-License-Identifier: Apache-2.0
"""int8 quantisation: error bound, independence of rows, packing there and back, edge values."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.ops.gemm.int8_layout import pack, unpack
from rtp_llm.quantization.int8 import GROUP_SIZE, dequantize_rows, quantize_rows

SHAPES = [(1, 1), (3, 63), (16, 64), (17, 65), (31, 200), (64, 256), (5, 1000)]

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_at_most_half_a_step(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = (torch.randn(shape) * torch.logspace(-3, 2, shape[0])[:, None]).to(dtype)
    quantized, scale = quantize_rows(weight)
    assert quantized.dtype == torch.int8
    assert scale.shape == (shape[0], -(-shape[1] // GROUP_SIZE))
    assert quantized.abs().max() == 127
    steps = scale.repeat_interleave(GROUP_SIZE, dim=1)[:, : shape[1]]
    error = (dequantize_rows(quantized, scale) - weight.float()).abs()
    assert (error <= steps * 0.50001).all()


def test_largest_of_a_group_is_exact() -> None:
    weight = torch.randn(8, 128)
    result = dequantize_rows(*quantize_rows(weight)).view(8, 2, GROUP_SIZE)
    expected = weight.view(8, 2, GROUP_SIZE)
    index = expected.abs().argmax(dim=-1, keepdim=True)
    torch.testing.assert_close(result.gather(2, index), expected.gather(2, index))


def test_rows_stand_alone() -> None:
    weight = torch.randn(40, 150)
    together = quantize_rows(weight)
    for part, whole in zip(quantize_rows(weight[7:19]), together, strict=True):
        assert torch.equal(part, whole[7:19])


def test_zeros_and_tiny_numbers_become_zero() -> None:
    weight = torch.zeros(2, 128)
    weight[0, 64:] = 1e-38
    weight[1, 3] = 5.0
    quantized, scale = quantize_rows(weight)
    assert torch.equal(dequantize_rows(quantized, scale), torch.where(weight > 1, weight, 0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    weight = torch.ones(3, 70)
    weight[2, 69] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize_rows(weight)


@every_shape
def test_packing_there_and_back(shape: tuple[int, int]) -> None:
    quantized, scale = quantize_rows(torch.randn(shape))
    packed, packed_scale = pack(quantized, scale)
    assert packed.is_contiguous() and packed_scale.is_contiguous()
    back, back_scale = unpack(packed, packed_scale)
    assert torch.equal(back[:, : shape[1]], quantized)
    assert not back[:, shape[1] :].any()
    assert torch.equal(back_scale, scale)


def test_packed_layout_is_the_documented_one() -> None:
    quantized = torch.randint(-127, 128, (20, 130), dtype=torch.int8)
    scale = torch.rand(20, 3)
    packed, packed_scale = pack(quantized, scale)
    flat = packed.flatten().view(torch.uint8)
    # Row 18, column 69: the block of 4 rows after one of 16, group 1, step 1, byte 1.
    position = 16 * 192 + (1 * 16 + 1) * 4 * 4 + 2 * 4 + 1
    assert flat[position] == int(quantized[18, 69]) + 128
    assert packed_scale.flatten()[16 * 3 + 1 * 4 + 2] == scale[18, 1]
    # Row 5, column 64 of the first block.
    assert flat[1024 + 5 * 4] == int(quantized[5, 64]) + 128


def test_scale_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale is \[4, 1\] for a weight \[4, 65\]"):
        pack(torch.zeros(4, 65, dtype=torch.int8), torch.ones(4, 1))

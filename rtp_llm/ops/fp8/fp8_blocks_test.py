# SPDX-License-Identifier: Apache-2.0
"""Block-scaled FP8: error bounds, scales, packing, layouts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rtp_llm.ops.fp8 import fp8_blocks


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_within_rounding(x: Tensor, back: Tensor, scales: Tensor) -> None:
    """Three bits of mantissa: half a unit is 2^-4 of the value, or of the least normal number."""
    limit = torch.maximum(x.abs() * 2**-4, scales * 2**-10) * 1.001
    assert ((x - back).abs() <= limit).all()


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("columns", [1, 100, 128, 129, 300, 512])
def test_rows_come_back_within_rounding(columns: int, *, powers: bool) -> None:
    x = torch.randn(7, columns) * torch.logspace(-6, 6, 7)[:, None]
    q, scales = fp8_blocks.quantize_rows(x, powers_of_two=powers)
    assert q.shape == x.shape
    assert scales.shape == (7, -(-columns // 128))
    back = fp8_blocks.dequantize_rows(q, scales)
    assert_within_rounding(x, back, scales.repeat_interleave(128, -1)[:, :columns])


@pytest.mark.parametrize("shape", [(128, 128), (64, 256), (192, 100), (3, 128, 384)])
def test_weights_come_back_within_rounding(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    q, scales = fp8_blocks.quantize_weight(weight)
    assert scales.shape == (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    back = fp8_blocks.dequantize_weight(q, scales)
    assert_within_rounding(weight, back, scales.amax())


def test_zeros_huge_and_tiny_groups() -> None:
    x = torch.zeros(4, 256)
    x[1] = 3e38
    x[2, :128] = 1e-30
    x[3, 5], x[3, 200] = -1.0, 448.0
    q, scales = fp8_blocks.quantize_rows(x)
    back = fp8_blocks.dequantize_rows(q, scales)
    assert not back[0].any()
    assert not back[2].any()  # below the least scale
    torch.testing.assert_close(back[1], x[1], rtol=1e-6, atol=0)
    assert torch.equal(back[3], x[3])
    assert scales.isfinite().all()
    assert (scales > 0).all()


def test_powers_of_two_are_the_least_ones() -> None:
    for scale in torch.cat([torch.rand(200) * 10, torch.tensor([1.0, 2.0, 0.25, 3.0])]).tolist():
        power = fp8_blocks.power_of_two(torch.tensor([scale])).item()
        assert power == 2.0 ** math.ceil(math.log2(torch.tensor(scale).item()))


@pytest.mark.parametrize("groups", range(1, 10))
def test_packed_exponents_bit_by_bit(groups: int) -> None:
    exponents = torch.randint(1, 255, (5, groups))
    scales = torch.ldexp(torch.ones(5, groups), exponents - 127)
    packed = fp8_blocks.pack_ue8m0(scales)
    assert packed.dtype == torch.int32
    assert packed.shape == (5, -(-groups // 4))
    for row in range(5):
        for group in range(groups):
            byte = int(packed[row, group // 4]) >> group % 4 * 8 & 0xFF
            assert byte == exponents[row, group]
    assert torch.equal(fp8_blocks.unpack_ue8m0(packed, groups), scales)
    assert (fp8_blocks.pack_ue8m0(torch.ones(1, 4)) == 0x7F7F7F7F).all()


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 130])
def test_columns_of_scales_begin_at_16_bytes(rows: int) -> None:
    scales = torch.rand(2, rows, 3)
    columns = fp8_blocks.column_major(scales)
    assert columns.shape == (2, 3, fp8_blocks.scale_rows(rows))
    assert columns.is_contiguous()
    assert torch.equal(fp8_blocks.row_major(columns, rows), scales)
    assert not columns[..., rows:].any()

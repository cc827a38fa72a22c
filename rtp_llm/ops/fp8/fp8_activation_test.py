# SPDX-License-Identifier: Apache-2.0
"""Quantised activations against plain PyTorch: dtypes, odd sizes, masks, padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.fp8 import fp8_blocks
from rtp_llm.testing.operator_checks import DEVICE, FLOAT_DTYPES

NATIVE = ops.has_kernel("fp8_quantize", DEVICE)
SHAPES = [(0, 256), (1, 128), (3, 100), (5, 1536), (2, 3, 384), (33, 7168), (4, 9, 130), (1, 2056)]

every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Rows and channels of very different sizes, some of them zeros."""
    x = torch.randn(shape) * torch.exp(torch.randn(shape[-1]) * 2)
    x[..., :1, :] = 0
    return x.to(dtype)


def assert_quantised(x: Tensor, q: Tensor, scales: Tensor) -> None:
    """q and scales are those of float32 x, up to neighbours where rounding is close."""
    expected_q, expected_scales = fp8_blocks.quantize_rows(x)
    rows = x.shape[-2]
    assert q.shape == x.shape
    assert q.dtype == fp8_blocks.E4M3
    expected_columns = fp8_blocks.column_major(expected_scales)
    assert scales.shape == expected_columns.shape
    torch.testing.assert_close(scales, expected_columns, rtol=1e-5, atol=0)
    actual = fp8_blocks.dequantize_rows(q, fp8_blocks.row_major(scales, rows))
    expected = fp8_blocks.dequantize_rows(expected_q, expected_scales)
    torch.testing.assert_close(
        actual,
        expected,
        rtol=0.13,
        atol=1e-7 + float(scales.max()) * 2**-9 if scales.numel() else 0,
    )
    assert (q.float() != expected_q.float()).float().mean() < 0.01 or q.numel() == 0


@every_dtype
@every_shape
def test_quantize(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random_rows(shape, dtype)
    assert_quantised(x.float(), *ops.fp8_quantize(x))


@every_dtype
@every_shape
def test_silu_and_mul(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random_rows((*shape[:-1], 2 * shape[-1]), dtype)
    gate, factor = x.float().chunk(2, -1)
    assert_quantised(gate * torch.sigmoid(gate) * factor, *ops.silu_and_mul_fp8(x))


@pytest.mark.parametrize("operator", [ops.fp8_quantize, ops.silu_and_mul_fp8])
def test_rows_past_the_mask_do_not_matter(operator: object) -> None:
    assert callable(operator)
    masked_m = torch.tensor([0, 7, 3, 12], dtype=torch.int32)
    x = torch.randn(4, 12, 512, dtype=torch.bfloat16)
    q, scales = operator(x)
    poisoned = x.clone()
    for group, rows in enumerate(masked_m.tolist()):
        poisoned[group, rows:] = torch.nan
    masked_q, masked_scales = operator(poisoned, masked_m)
    for group, rows in enumerate(masked_m.tolist()):
        assert torch.equal(masked_q[group, :rows].float(), q[group, :rows].float())
        assert torch.equal(masked_scales[group, :, :rows], scales[group, :, :rows])


def test_results_of_meta_tensors_have_the_same_shapes() -> None:
    for shape in SHAPES:
        x = torch.randn((*shape[:-1], 2 * shape[-1]), dtype=torch.bfloat16)
        for operator in (ops.fp8_quantize, ops.silu_and_mul_fp8):
            for real, meta in zip(operator(x), operator(x.to("meta")), strict=True):
                assert (real.shape, real.dtype) == (meta.shape, meta.dtype)

# SPDX-License-Identifier: Apache-2.0
"""4-bit quantisation: error bound, independence of rows, edge values."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.quantization.int4 import GROUP_SIZE, dequantize_rows, quantize_rows

SHAPES = [(1, 2), (3, 126), (16, 128), (17, 130), (5, 1000)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_at_most_a_step(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Half of it between the ends, which the rounded zero point moves by up to another half."""
    weight = (torch.randn(shape) * torch.logspace(-3, 2, shape[0])[:, None]).to(dtype)
    packed, scale, zero = quantize_rows(weight)
    assert packed.shape == (shape[0], shape[1] // 2)
    assert scale.shape == zero.shape == (shape[0], -(-shape[1] // GROUP_SIZE))
    steps = scale.repeat_interleave(GROUP_SIZE, dim=1)[:, : shape[1]]
    error = (dequantize_rows(packed, scale, zero) - weight.float()).abs() / steps
    assert error.max() <= 1.0001
    assert (error <= 0.5001).float().mean() > 0.9


def test_whole_steps_and_zero_are_exact() -> None:
    weight = torch.arange(-6, 10).float().repeat(3, 16) * 0.25
    weight[1] = 0
    weight[2] = weight[2].abs()
    exact = dequantize_rows(*quantize_rows(weight))
    assert torch.equal(exact[0], weight[0])
    assert torch.equal(exact[1], weight[1])
    assert (exact[2][weight[2] == 0] == 0).all()


def test_rows_do_not_depend_on_each_other() -> None:
    weight = torch.randn(9, 200)
    whole = quantize_rows(weight)
    for part in range(9):
        alone = quantize_rows(weight[part : part + 1])
        assert all(torch.equal(a[0], b[part]) for a, b in zip(alone, whole, strict=True))


@pytest.mark.parametrize("value", [torch.inf, torch.nan, -torch.inf])
def test_what_is_not_finite_is_an_error(value: float) -> None:
    weight = torch.ones(2, 8)
    weight[1, 3] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize_rows(weight)

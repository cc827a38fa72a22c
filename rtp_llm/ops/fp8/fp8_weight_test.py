# SPDX-License-Identifier: Apache-2.0
"""Products of floats with FP8 weights, against their reference and row by row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.fp8.fp8_blocks import E4M3, num_blocks
from rtp_llm.ops.fp8.fp8_weight_reference import fp8_weight_linear_reference
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, TORCH_TYPE, assert_near, kernel_runs

NATIVE = ops.has_kernel("fp8_weight_linear", TORCH_TYPE)
native_only = pytest.mark.skipif(not NATIVE, reason="this device has no kernel")
every_kind = pytest.mark.parametrize("in_blocks", [True, False], ids=["blocks", "channels"])


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def stored(n: int, k: int, in_blocks: bool) -> tuple[Tensor, Tensor]:
    """All numbers of e4m3, in rows that are further apart than they are long, with NaNs between."""
    codes = torch.randint(256, (n, k + 5), dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    codes[:, k:] = 0x7F
    shape = (num_blocks(n), num_blocks(k)) if in_blocks else (n, 1)
    return codes.view(E4M3)[:, :k], (torch.rand(shape) + 0.5) / 448


@native_only
@every_kind
def test_fp8_weight_equals_the_reference(in_blocks: bool) -> None:
    shapes = ((1, 64, 16), (3, 161, 40), (7, 128, 64), (13, 328, 213), (40, 256, 130), (0, 64, 5))
    for index, (rows, k, n) in enumerate(shapes):
        dtype = FLOAT_DTYPES[index % 3]
        weight, scales = stored(n, k, in_blocks)
        x = torch.randn(rows, k + 3).to(dtype)[:, :k]
        bias = torch.randn(n).to(dtype) if index % 2 else None
        with kernel_runs("fp8_weight_linear"):
            actual = ops.fp8_weight_linear(x, weight, scales, bias)
        expected = fp8_weight_linear_reference(x, weight, scales, bias)
        scale = float(k) ** 0.5
        assert actual.is_contiguous()
        assert_near(actual / scale, expected / scale)


@native_only
def test_fp8_weight_is_exact_for_every_number() -> None:
    """Each product has one term, so that nothing is rounded."""
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3).view(256, 1)
    x, scales = torch.tensor([[0.5], [-2.0]]), torch.full((256, 1), 0.25)
    actual = ops.fp8_weight_linear(x, codes, scales)
    expected = x @ (codes.float() * 0.25).T
    assert actual.isnan().sum() == 4  # 0x7f and 0xff in both rows
    assert torch.equal(actual.nan_to_num(1e6), expected.nan_to_num(1e6))


@native_only
@every_kind
def test_fp8_weight_rows_do_not_depend_on_their_batch(in_blocks: bool) -> None:
    weight, scales = stored(150, 256, in_blocks)
    x = torch.randn(30, 256, dtype=torch.bfloat16)
    together = ops.fp8_weight_linear(x, weight, scales)
    for rows in (1, 3, 7, 8, 9, 13):
        assert torch.equal(ops.fp8_weight_linear(x[:rows], weight, scales), together[:rows])


@native_only
def test_fp8_weight_keeps_nan_in_its_row() -> None:
    weight, scales = stored(20, 64, True)
    x = torch.ones(9, 64)
    x[4, 63] = torch.nan
    finite = ops.fp8_weight_linear(x, weight, scales).isfinite()
    assert finite.any(1).tolist() == finite.all(1).tolist() == [each != 4 for each in range(9)]


@native_only
def test_fp8_weight_names_wrong_arguments() -> None:
    weight, scales = stored(140, 160, True)
    x = torch.ones(2, 160)
    with pytest.raises(RuntimeError, match="fp8_weight_linear: weight"):
        ops.fp8_weight_linear(x, weight.float(), scales)
    with pytest.raises(RuntimeError, match="fp8_weight_linear: weight"):
        ops.fp8_weight_linear(x[:, :128], weight, scales)
    with pytest.raises(RuntimeError, match=r"scales is .*; expected shape \[2, 2\] or \[140, 1\]"):
        ops.fp8_weight_linear(x, weight, scales[:1])
    with pytest.raises(RuntimeError, match="fp8_weight_linear: scales"):
        ops.fp8_weight_linear(x, weight, scales.double())
    with pytest.raises(RuntimeError, match="fp8_weight_linear: bias"):
        ops.fp8_weight_linear(x, weight, scales, torch.zeros(3))


@every_kind
def test_fp8_weight_reference_multiplies_the_floats(in_blocks: bool) -> None:
    weight, scales = stored(130, 140, in_blocks)
    x, bias = torch.randn(3, 140), torch.randn(130)
    rows = torch.arange(130) // (128 if in_blocks else 1)
    columns = torch.arange(140) // (128 if in_blocks else 140)
    floats = weight.float() * scales[rows][:, columns]
    expected = torch.nn.functional.linear(x, floats, bias)
    actual = fp8_weight_linear_reference(x, weight, scales, bias)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)

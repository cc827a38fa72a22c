# SPDX-License-Identifier: Apache-2.0
"""Norms that quantise against plain PyTorch: dtypes, sizes, sums in place, strides, mismatches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.norm.norm_reference import rms_norm_reference
from rtp_llm.testing.fp8_rows import assert_quantized
from rtp_llm.testing.operator_checks import DEVICE, FLOAT_DTYPES, kernel_runs

NATIVE = ops.has_kernel("norm_fp8", DEVICE)
SHAPES = [(0, 256), (1, 128), (3, 1024), (5, 4096), (4, 4224), (130, 7168), (2, 16384)]


@pytest.fixture(autouse=True)
def _references() -> Iterator[None]:
    torch.manual_seed(0)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape) * torch.exp(torch.randn(shape[-1]))).to(dtype)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_pending", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_are_those_of_the_formula(
    shape: tuple[int, int], dtype: torch.dtype, with_pending: bool, offset: float
) -> None:
    weight = (torch.rand(shape[1]) + 0.5 - offset).to(dtype)
    residual = random((shape[0], shape[1] + 4), dtype)[:, : shape[1]]  # a row stride of its own
    pending = random(shape, dtype) if with_pending else None
    wanted = residual.clone()
    if pending is not None:
        wanted = (wanted.float() + pending.float()).to(dtype)
    expected = rms_norm_reference(wanted.float(), weight, 1e-5, offset)
    ran = kernel_runs("norm_fp8") if NATIVE and shape[0] else contextlib.nullcontext()
    with ran:
        q, scales = ops.norm_fp8(residual, pending, weight, 1e-5, offset)
    assert torch.equal(residual, wanted)
    assert_quantized(q, scales, expected)


def test_rows_of_zeros_stay_zeros() -> None:
    residual = torch.zeros(3, 256, dtype=torch.bfloat16)
    q, scales = ops.norm_fp8(residual, None, torch.ones(256, dtype=torch.bfloat16), 1e-6)
    assert not q.float().any()
    assert scales.isfinite().all()


@pytest.mark.skipif(not NATIVE, reason="checks of the kernel's arguments")
@pytest.mark.parametrize(
    ("columns", "pending", "message"),
    [
        (200, None, "a multiple of 128"),
        (16384 + 128, None, "at most 16384"),
        (256, (3, 128), "pending"),
    ],
)
def test_a_mismatch_is_an_error(
    columns: int, pending: tuple[int, int] | None, message: str
) -> None:
    residual = torch.zeros(3, columns, dtype=torch.bfloat16)
    other = None if pending is None else torch.zeros(pending, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=message):
        ops.norm_fp8(residual, other, torch.ones(columns, dtype=torch.bfloat16), 1e-6)

# SPDX-License-Identifier: Apache-2.0
"""Products with 4-bit codes of a table, against their reference and product by product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.moe.mxfp4_blocks import E2M1
from rtp_llm.ops.moe.mxfp4_reference import table4_grouped_linear_reference, table4_weights
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    cpu_only,
    kernel_runs,
    running,
)

NATIVE = ops.has_kernel("table4_grouped_linear", TORCH_TYPE)
native_only = pytest.mark.skipif(not NATIVE, reason="limits of kernels that this device lacks")
NUMBERS = torch.tensor(E2M1)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there is no kernel, the reference is tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


Weights = tuple[Tensor, Tensor, Tensor, Tensor | None]


def weights(experts: int, n: int, k: int, group: int) -> Weights:
    """Codes, scales, table and, with e4m3 scales of 16 columns (group 0), those of rows."""
    codes = torch.randint(256, (experts, n, k // 2), dtype=torch.uint8).view(torch.int8)
    if group:
        return codes, torch.rand(experts, n, k // group), torch.randn(16), None
    scales = (torch.rand(experts, n, k // 16) * 448).to(torch.float8_e4m3fn)
    scales[:, :, 0] = 2**-9  # the smallest
    return codes, scales.view(torch.int8), NUMBERS, torch.rand(experts, n) * 1e-3


def bounds(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("group", [0, 16, 32, 64])
def test_it_equals_the_reference(isa: str, dtype: torch.dtype, group: int) -> None:
    """One to four rows of an expert, which meet codes, and more, which meet decoded weights."""
    for counts, n, k in ([3], 5, 64), ([0, 4, 0, 1, 2, 37], 51, 192), ([1] * 9, 100, 64):
        rows = sum(counts)
        x, given = torch.randn(rows + 2, k).to(dtype), weights(len(counts), n, k, group)
        x[rows:] = torch.nan  # rows of no expert
        bias = torch.randn(len(counts), n).to(dtype)
        codes, scales, table, of_rows = given
        for added in (None, bias):
            arguments = (codes, scales, table, bounds(counts), of_rows)
            with running(isa), kernel_runs("table4_grouped_linear"):
                actual = ops.table4_grouped_linear(x, *arguments, added)
            wide = None if added is None else added.float()
            expected = table4_grouped_linear_reference(x.double().float(), *arguments, wide)
            limit = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
            error = (actual[:rows].float() - expected[:rows]).abs().max()
            assert error <= limit * expected[:rows].abs().max()


@native_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [0, 64])
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(isa: str, group: int) -> None:
    for rows in (2, 4, 5, 9, 70):
        x, (codes, scales, table, of_rows) = torch.randn(rows, 192), weights(2, 60, 192, group)
        with running(isa):
            given = codes, scales, table
            together = ops.table4_grouped_linear(x, *given, bounds([0, rows]), of_rows)
            for row in (0, rows - 1):
                one = x[row : row + 1].contiguous()
                alone = ops.table4_grouped_linear(one, *given, bounds([0, 1]), of_rows)
                assert torch.equal(alone[0], together[row])


@native_only
@pytest.mark.parametrize("isa", ISAS)
def test_every_code_and_scale_is_decoded_exactly(isa: str) -> None:
    """Each column alone: a product with one is the weight itself, bit for bit."""
    codes = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(1, 16, 1).view(torch.int8)
    scales = torch.arange(256, dtype=torch.uint8)
    scales[scales & 0x7F == 0x7F] = 0  # NaN
    bytes_of = torch.stack((scales, scales.flip(0)), 1)[None].contiguous().view(torch.int8)
    of_rows = torch.rand(1, 256)
    exact = table4_weights(codes, bytes_of, NUMBERS, of_rows)[0]
    for rows in (1, 32):
        with running(isa):
            x = torch.eye(32)[:rows].contiguous()
            found = ops.table4_grouped_linear(x, codes, bytes_of, NUMBERS, bounds([rows]), of_rows)
        assert torch.equal(found.T, exact[:, :rows])


def test_nothing() -> None:
    codes, scales, table, _ = weights(2, 8, 32, 16)
    out = ops.table4_grouped_linear(torch.empty(0, 32), codes, scales, table, bounds([0, 0]))
    assert out.shape == (0, 8)


@native_only
def test_wrong_arguments_are_named() -> None:
    codes, scales, table, of_rows = weights(1, 8, 64, 0)
    x, ends = torch.zeros(2, 64), bounds([2])
    with pytest.raises(RuntimeError, match=r"table4_grouped_linear: x .* blocks of 32"):
        ops.table4_grouped_linear(torch.zeros(2, 48), codes, scales, table, ends, of_rows)
    with pytest.raises(RuntimeError, match="multiple of 16"):
        ops.table4_grouped_linear(x, codes, torch.zeros(1, 8, 8), table, ends)
    with pytest.raises(RuntimeError, match="one of e4m3 for each 16"):
        wide = torch.zeros(1, 8, 2, dtype=torch.int8)
        ops.table4_grouped_linear(x, codes, wide, table, ends, of_rows)
    with pytest.raises(RuntimeError, match="table4_grouped_linear: table"):
        ops.table4_grouped_linear(x, codes, scales, table[:8], ends, of_rows)
    with pytest.raises(RuntimeError, match="table4_grouped_linear: row_scales"):
        ops.table4_grouped_linear(x, codes, scales, table, ends, torch.zeros(1, 7))


@cpu_only
def test_rows_outside_of_x_are_named() -> None:
    codes, scales, table, of_rows = weights(1, 8, 64, 0)
    x = torch.zeros(2, 64)
    with pytest.raises(IndexError, match=r"table4_grouped_linear: offsets\[1\] is 3"):
        ops.table4_grouped_linear(x, codes, scales, table, bounds([3]), of_rows)


def test_the_operator_is_traceable() -> None:
    codes, scales, table, of_rows = weights(2, 8, 64, 0)
    bias = torch.randn(2, 8)
    args = (torch.randn(5, 64), codes, scales, table, bounds([2, 3]), of_rows, bias)
    operator = torch.ops.rtp_llm.table4_grouped_linear.default
    torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))

# SPDX-License-Identifier: Apache-2.0
"""Products with integer weights in groups, against their references and row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.gemm import wna16_layout
from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, unpack_bytes
from rtp_llm.ops.gemm.wna16_layout import Wna16Weights
from rtp_llm.ops.gemm.wna16_reference import (
    wna16_grouped_linear_reference,
    wna16_linear_reference,
)
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)

pytestmark = pytest.mark.skipif(
    not ops.has_kernel("wna16_linear", TORCH_TYPE), reason="this device has other layouts"
)
every_isa = pytest.mark.parametrize("isa", ISAS)
# (bits, columns of a group)
KINDS = ((4, 32), (4, 64), (4, 128), (4, 0), (8, 32), (8, 128), (8, 0))


class Stored(NamedTuple):
    """A weight as the loader has it."""

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bits: int
    group: int

    def packed(self) -> Wna16Weights:
        return wna16_layout.pack(self.weight, self.scale, self.zero, self.bits, self.group)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def stored(n: int, k: int, bits: int, group: int) -> Stored:
    """All codes and zero points."""
    groups = -(-k // group) if group else 1
    return Stored(
        torch.randint(256, (n, k * bits // 8), dtype=torch.uint8),
        torch.rand(n, groups) + 0.5,
        torch.randint(1 << bits, (n, groups), dtype=torch.uint8),
        bits,
        group,
    )


@every_isa
@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_it_equals_the_reference(isa: str, bits: int, group: int) -> None:
    shapes = ((1, 64, 16), (3, 160, 40), (7, 128, 64), (13, 328, 21), (40, 256, 130), (0, 64, 5))
    for index, (rows, k, n) in enumerate(shapes):
        dtype = FLOAT_DTYPES[index % 3]
        weights = stored(n, k, bits, group).packed()
        x = torch.randn(rows, k + 3).to(dtype)[:, :k]
        bias = torch.randn(n).to(dtype) if index % 2 else None
        with running(isa), kernel_runs("wna16_linear"):
            actual = ops.wna16_linear(x, *weights, n, bits, group, bias=bias)
        scale = float(k) ** 0.5 * (1 << bits)
        expected = wna16_linear_reference(x, *weights, n, bits, group, bias=bias)
        assert_near(actual / scale, expected / scale)


def test_the_layout_keeps_what_it_is_given() -> None:
    for bits, group in KINDS:
        given = stored(21, 136, bits, group)
        codes, scale, zero = wna16_layout.unpack(*given.packed(), bits)
        assert torch.equal(codes[:21, :136], unpack_bytes(given.weight, bits))
        assert torch.equal(scale[:21], given.scale)
        assert torch.equal(zero[:21], given.zero)


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_products_with_bytes_are_exact(bits: int, group: int) -> None:
    """x of whole numbers is quantised without error: the result is that of the floats."""
    given = stored(24, 192, bits, group)
    x = torch.randint(-127, 128, (5, 192)).float()
    x[:, ::32] = 127
    codes = unpack_bytes(given.weight, bits)
    floats = dequantize(codes, given.scale, given.zero, groups_in_order(192, group))
    actual = ops.wna16_linear(x, *given.packed(), 24, bits, group)
    expected = x.double() @ floats.double().T
    assert (actual - expected).abs().max() <= 1e-6 * expected.abs().max()


@every_isa
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (8, 32)])
def test_a_row_does_not_depend_on_its_batch(isa: str, bits: int, group: int) -> None:
    weights = stored(150, 256, bits, group).packed()
    x = torch.randn(230, 256, dtype=torch.bfloat16)
    with running(isa):
        together = ops.wna16_linear(x, *weights, 150, bits, group)
        for rows in (1, 2, 3, 4, 5, 6, 7, 13, 32):
            alone = ops.wna16_linear(x[:rows], *weights, 150, bits, group)
            assert torch.equal(alone, together[:rows])


@every_isa
def test_columns_in_another_order(isa: str) -> None:
    weights = stored(20, 128, 4, 64).packed()
    x = torch.randn(3, 120)
    order = torch.cat([torch.randperm(120), torch.full((8,), -1)]).int()[torch.randperm(128)]
    gathered = torch.nn.functional.pad(x, (0, 1))[:, order.long()]
    with running(isa):
        actual = ops.wna16_linear(x, *weights, 20, 4, 64, order)
        assert torch.equal(actual, ops.wna16_linear(gathered, *weights, 20, 4, 64))
    assert_near(actual / 100, wna16_linear_reference(x, *weights, 20, 4, 64, order) / 100)


@cpu_only
def test_columns_outside_of_x_are_named() -> None:
    weights = stored(20, 128, 4, 64).packed()
    x, order = torch.randn(3, 120), torch.zeros(128, dtype=torch.int32)
    order[5] = 120
    with pytest.raises(IndexError, match=r"order\[5\] is 120; expected -1 or one of the 120"):
        ops.wna16_linear(x, *weights, 20, 4, 64, order)


@every_isa
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64)])
def test_experts(isa: str, bits: int, group: int) -> None:
    counts = (0, 1, 9, 0, 3)
    n, k, rows = 37, 96, sum(counts)
    experts = [stored(n, k, bits, group).packed() for _ in counts]
    weights = Wna16Weights(*(torch.stack(each) for each in zip(*experts, strict=True)))
    x, bias = torch.randn(rows + 2, k), torch.randn(len(counts), n)
    x[rows:] = torch.nan  # of no expert
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    with running(isa), kernel_runs("wna16_grouped_linear"):
        actual = ops.wna16_grouped_linear(x, *weights, offsets, n, bits, group, bias)[:rows]
    reference = wna16_grouped_linear_reference(x, *weights, offsets, n, bits, group, bias)
    assert_near(actual / 2000, reference[:rows] / 2000)
    with running(isa):
        for expert, count in enumerate(counts):
            first = int(offsets[expert])
            span = slice(first, first + count)
            alone = ops.wna16_linear(x[span], *experts[expert], n, bits, group, bias=bias[expert])
            assert torch.equal(alone, actual[span])


@every_isa
def test_nan_stays_in_its_row(isa: str) -> None:
    weights = stored(20, 64, 4, 32).packed()
    x = torch.ones(9, 64)
    x[4, 63] = torch.inf
    x[6, 0] = torch.nan
    with running(isa):
        result = ops.wna16_linear(x, *weights, 20, 4, 32)
    assert result[[4, 6]].isnan().all()
    assert result[[0, 1, 2, 3, 5, 7, 8]].isfinite().all()


def test_wrong_arguments_are_named() -> None:
    weights = stored(20, 64, 4, 32).packed()
    x, offsets = torch.ones(2, 64), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="bits is 3; expected 4 or 8"):
        ops.wna16_linear(x, *weights, 20, 3, 32)
    with pytest.raises(RuntimeError, match="group is 48; expected a multiple of 32"):
        ops.wna16_linear(x, *weights, 20, 4, 48)
    with pytest.raises(
        RuntimeError, match=r"weight is int8 \[2, 512\]; expected shape \[2, 1024\]"
    ):
        ops.wna16_linear(x, *weights, 20, 8, 32)
    with pytest.raises(RuntimeError, match=r"scale is .*; expected shape \[2, 1, 16\]"):
        ops.wna16_linear(x, *weights, 20, 4, 64)
    with pytest.raises(RuntimeError, match="whole parts of 32"):
        ops.wna16_linear(x, *weights, 20, 4, 32, offsets)
    stack = [each[None] for each in weights]
    with pytest.raises(RuntimeError, match=r"expected shape \[3, 2, 512\]|offsets is"):
        ops.wna16_grouped_linear(x, *stack, torch.zeros(4, dtype=torch.int32), 20, 4, 32)


@cpu_only
def test_rows_outside_of_x_are_named() -> None:
    stack = [each[None] for each in stored(20, 64, 4, 32).packed()]
    x, offsets = torch.ones(2, 64), torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(IndexError, match="the 2 rows of x"):
        ops.wna16_grouped_linear(x, *stack, offsets, 20, 4, 32)

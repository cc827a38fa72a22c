# SPDX-License-Identifier: Apache-2.0
"""Linear layers against their references: every instruction set and dtype, odd sizes, strides."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.gemm.int8_layout import GROUP_SIZE, num_groups, pack, unpack
from rtp_llm.ops.gemm.linear_reference import (
    int8_linear_reference,
    linear_reference,
    w8a8_int8_linear_reference,
)
from rtp_llm.testing.operator_checks import (
    DEVICE,
    FLOAT_DTYPES,
    ISAS,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)

with_int8 = pytest.mark.skipif(
    torch.version.hip is not None, reason="its kernels are for other devices"
)
REFERENCES = {
    "int8_linear": int8_linear_reference,
    "w8a8_int8_linear": w8a8_int8_linear_reference,
}
every_int8 = pytest.mark.parametrize("name", REFERENCES)
every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def rows(count: int, width: int, dtype: torch.dtype, gap: int = 0) -> Tensor:
    """Normal values in rows that lie `gap` elements apart."""
    return torch.randn(count, width + gap).to(dtype)[:, :width]


def random_shapes(count: int) -> list[tuple[int, int, int]]:
    """(M, K, O): all kinds of edges of tiles and vectors."""
    return [
        (
            random.choice((0, 1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 31, 70)),
            random.choice((1, 7, 16, 31, 32, 33, 63, 64, 65, 128, 130, 257, 1025)),
            random.choice((1, 5, 11, 12, 13, 16, 24, 37, 100)),
        )
        for _ in range(count)
    ]


@every_isa
@every_dtype
def test_linear_equals_reference(isa: str, dtype: torch.dtype) -> None:
    for index, (m, k, o) in enumerate(random_shapes(25)):
        x = rows(m, k, dtype, gap=(0, 3, 16)[index % 3])
        weight = rows(o, k, dtype, gap=(0, 5)[index % 2])
        bias = torch.randn(o).to(dtype) if index % 4 else None
        with running(isa), kernel_runs("linear"):
            actual = ops.linear(x, weight, bias)
        assert actual.is_contiguous()
        # The sums are as exact as float32 allows: errors are relative to their terms.
        scale = float(k) ** 0.5
        assert_near(actual / scale, linear_reference(x, weight, bias) / scale)


@cpu_only
@every_isa
@every_dtype
def test_products_of_a_stack(isa: str, dtype: torch.dtype) -> None:
    x = torch.randn(19, 5, 70).to(dtype)[..., 3:67]
    weight = torch.randn(5, 40, 64).to(dtype)[:, 7:30]
    with running(isa):
        actual = ops.linear(x, weight)
        alone = [ops.linear(x[:, i], weight[i]) for i in range(5)]
    assert actual.is_contiguous()
    assert torch.equal(actual, torch.stack(alone, 1))
    assert_near(actual / 8, linear_reference(x, weight) / 8)
    for wrong in (weight[:4], weight[..., :-1], weight[0]):
        with pytest.raises(RuntimeError, match="linear: weight"):
            ops.linear(x, wrong)
    with pytest.raises(RuntimeError, match="no bias"):
        ops.linear(x, weight, weight[0, :, 0].contiguous())


@cpu_only
@every_isa
@every_dtype
def test_row_does_not_depend_on_its_batch(isa: str, dtype: torch.dtype) -> None:
    for k in (60, 1100):
        x, weight = rows(150, k, dtype), rows(30, k, dtype)
        with running(isa):
            together = ops.linear(x, weight)
            for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20):
                assert torch.equal(ops.linear(x[:m], weight), together[:m])


@cpu_only
def test_linear_does_not_depend_on_threads() -> None:
    x, weight = rows(40, 300, torch.float32), rows(500, 300, torch.float32)
    threads = torch.get_num_threads()
    together = ops.linear(x, weight)
    try:
        torch.set_num_threads(1)
        assert torch.equal(ops.linear(x, weight), together)
    finally:
        torch.set_num_threads(threads)


@every_isa
def test_bfloat16_sums_are_float32(isa: str) -> None:
    x = torch.ones(2, 4096, dtype=torch.bfloat16)
    weight = torch.full((3, 4096), 1 / 1024, dtype=torch.bfloat16)
    with running(isa):
        assert torch.equal(ops.linear(x, weight), torch.full((2, 3), 4.0, dtype=torch.bfloat16))


@every_isa
def test_infinity_and_nan_stay_in_their_rows_and_columns(isa: str) -> None:
    x, weight = torch.ones(9, 40), torch.ones(20, 40)
    x[4, 39] = torch.nan
    weight[7, 0] = torch.inf
    with running(isa):
        result = ops.linear(x, weight)
    assert result[4].isnan().all()
    assert (result[[0, 8], 7] == torch.inf).all()
    assert (result[5, 8:] == 40).all()


@pytest.mark.parametrize("shape", [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_linear_of_nothing(shape: tuple[int, int, int]) -> None:
    m, k, o = shape
    bias = torch.randn(o)
    result = ops.linear(torch.ones(m, k), torch.ones(o, k), bias)
    assert torch.equal(result, bias.expand(m, o) + float(k))


def test_wrong_arguments_are_named() -> None:
    x, weight = torch.zeros(3, 8), torch.zeros(5, 8)
    with pytest.raises(RuntimeError, match=r"linear: weight is float16 \[5, 8\]; expected float32"):
        ops.linear(x, weight.half())
    with pytest.raises(RuntimeError, match=r"linear: weight is float32 \[5, 7\] and x float32"):
        ops.linear(x, torch.zeros(5, 7))
    with pytest.raises(RuntimeError, match=r"linear: bias is float32 \[3\]; expected shape \[5\]"):
        ops.linear(x, weight, torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"linear: x is float32 \[8\]; expected 2 dimensions"):
        ops.linear(x[0], weight)
    with pytest.raises(RuntimeError, match=r"linear: x is int32"):
        ops.linear(x.int(), weight)
    with pytest.raises(RuntimeError, match=r"linear: x .* gaps within"):
        ops.linear(torch.zeros(8, 3).T, weight)


def packed_weight(o: int, k: int) -> tuple[Tensor, Tensor]:
    weight = torch.randint(-127, 128, (o, k), dtype=torch.int8)
    return pack(weight, torch.rand(o, num_groups(k)) / 127)


def int8_expected(
    name: str, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None
) -> Tensor:
    if DEVICE != "cuda" or len(x) <= 32:
        return REFERENCES[name](x, weight, scale, bias)
    numbers, scales = unpack(weight, scale)
    wide = numbers.float() * scales.repeat_interleave(GROUP_SIZE, dim=1)
    return linear_reference(x, wide[:, : x.shape[1]].to(x.dtype), bias)


@with_int8
@every_int8
@every_isa
@every_dtype
def test_int8_linear_equals_reference(isa: str, dtype: torch.dtype, name: str) -> None:
    for index, (m, k, o) in enumerate(random_shapes(25)):
        x = rows(m, k, dtype, gap=(0, 3, 16)[index % 3])
        weight, scale = packed_weight(o, k)
        bias = torch.randn(o).to(dtype) if index % 4 else None
        with running(isa), kernel_runs(name):
            actual = getattr(ops, name)(x, weight, scale, bias)
        assert actual.is_contiguous()
        size = float(k) ** 0.5
        assert_near(actual / size, int8_expected(name, x, weight, scale, bias) / size)


@with_int8
@every_int8
@every_isa
def test_int8_linear_of_largest_numbers_is_exact(isa: str, name: str) -> None:
    k = 4 * GROUP_SIZE
    for sign in (1, -1):
        x = torch.full((9, k), 127.0)
        weight, scale = pack(
            torch.full((21, k), sign * 127, dtype=torch.int8), torch.ones(21, num_groups(k))
        )
        with running(isa):
            result = getattr(ops, name)(x, weight, scale)
        assert torch.equal(result, torch.full((9, 21), float(sign * 127 * 127 * k)))


@cpu_only
@every_int8
@every_isa
def test_int8_row_does_not_depend_on_its_batch(isa: str, name: str) -> None:
    weight, scale = packed_weight(90, 700)
    x = rows(300, 700, torch.bfloat16)
    with running(isa):
        together = getattr(ops, name)(x, weight, scale)
        for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20):
            assert torch.equal(getattr(ops, name)(x[:m], weight, scale), together[:m])


@with_int8
@every_isa
def test_int8_linear_does_not_round_x(isa: str) -> None:
    """Small numbers next to a large one: eight bits would lose them."""
    x = torch.full((3, GROUP_SIZE), 0.125)
    x[:, 5] = 1000.0
    numbers = torch.randint(-127, 128, (20, GROUP_SIZE), dtype=torch.int8)
    numbers[:, 5] = 0
    weight, scale = pack(numbers, torch.ones(20, 1))
    with running(isa):
        result = ops.int8_linear(x, weight, scale)
    assert torch.equal(result, (0.125 * numbers.float().sum(1)).expand(3, 20))
    assert not ops.w8a8_int8_linear(x, weight, scale).any()


@with_int8
@every_int8
@every_isa
def test_int8_rows_that_are_not_finite_give_no_number_and_others_do(isa: str, name: str) -> None:
    weight, scale = packed_weight(20, 200)
    x = torch.randn(6, 200)
    x[1, 199], x[3, 0], x[4, 70] = torch.nan, torch.inf, -torch.inf
    x[5] = 0
    with running(isa):
        result = getattr(ops, name)(x, weight, scale)
    assert not result[[1, 3, 4]].isfinite().any()
    assert result[1].isnan().all()
    if name == "w8a8_int8_linear":
        assert result[[3, 4]].isnan().all()
    assert result[[0, 2]].isfinite().all()
    assert not result[5].any()


@with_int8
@every_int8
@pytest.mark.parametrize("shape", [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_int8_linear_of_nothing(shape: tuple[int, int, int], name: str) -> None:
    m, k, o = shape
    bias = torch.randn(o)
    weight, scale = pack(torch.zeros(o, k, dtype=torch.int8), torch.ones(o, num_groups(k)))
    result = getattr(ops, name)(torch.ones(m, k), weight, scale, bias)
    assert torch.equal(result, bias.expand(m, o))


@with_int8
@every_int8
def test_wrong_int8_arguments_are_named(name: str) -> None:
    product = getattr(ops, name)
    x = torch.zeros(3, 70)
    weight, scale = packed_weight(5, 70)
    with pytest.raises(RuntimeError, match=r"int8_linear: weight is float32 \[5, 128\]; expected"):
        product(x, weight.float(), scale)
    with pytest.raises(RuntimeError, match=r"int8_linear: weight is int8 \[5, 128\] and x has 60"):
        product(x[:, :60], weight, scale)
    with pytest.raises(RuntimeError, match=r"int8_linear: scale is float32 \[4, 2\]; expected"):
        product(x, weight, scale[:4])
    with pytest.raises(RuntimeError, match=r"int8_linear: bias is float32 \[3\]; expected shape"):
        product(x, weight, scale, torch.zeros(3))


def test_linear_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.linear.default,
        (torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)),
        test_utils=("test_schema", "test_faketensor"),
    )


@with_int8
@every_int8
def test_int8_linear_is_traceable(name: str) -> None:
    torch.library.opcheck(
        getattr(torch.ops.rtp_llm, name).default,
        (torch.randn(3, 8), *packed_weight(5, 8), torch.randn(5)),
        test_utils=("test_schema", "test_faketensor"),
    )

"""Linear layers against their references: every instruction set and dtype, odd sizes, strides."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.checks_for_tests import FLOAT_DTYPES, ISAS, assert_near, kernel_runs
from rtp_llm.ops.gemm_reference import linear_reference

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
        with ops.forced_cpu_isa(isa), kernel_runs("linear"):
            actual = ops.linear(x, weight, bias)
        assert actual.is_contiguous()
        # The sums are as exact as float32 allows: errors are relative to their terms.
        scale = float(k) ** 0.5
        assert_near(actual / scale, linear_reference(x, weight, bias) / scale)


@every_isa
@every_dtype
def test_row_does_not_depend_on_its_batch(isa: str, dtype: torch.dtype) -> None:
    for k in (60, 1100):
        x, weight = rows(150, k, dtype), rows(30, k, dtype)
        with ops.forced_cpu_isa(isa):
            together = ops.linear(x, weight)
            for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20):
                assert torch.equal(ops.linear(x[:m], weight), together[:m])


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
    with ops.forced_cpu_isa(isa):
        assert torch.equal(ops.linear(x, weight), torch.full((2, 3), 4.0, dtype=torch.bfloat16))


@every_isa
def test_infinity_and_nan_stay_in_their_rows_and_columns(isa: str) -> None:
    x, weight = torch.ones(9, 40), torch.ones(20, 40)
    x[4, 39] = torch.nan
    weight[7, 0] = torch.inf
    with ops.forced_cpu_isa(isa):
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


def test_linear_is_traceable() -> None:
    arguments = (torch.randn(3, 8), torch.randn(5, 8), torch.randn(5))
    torch.library.opcheck(
        torch.ops.rtp_llm.linear.default, arguments, test_utils=("test_schema", "test_faketensor")
    )

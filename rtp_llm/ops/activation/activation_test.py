# SPDX-License-Identifier: Apache-2.0
"""Activations against their references, and against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.ops.activation.activation_reference import (
    gelu_and_mul_reference,
    gelu_reference,
    silu_and_mul_reference,
)
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, assert_near, kernel_runs, running

SHAPES = [(1, 2), (3, 14), (2, 30), (5, 32), (4, 34), (2, 3, 66), (3, 2 * 2049), (9, 2 * 4100)]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_isa
@every_dtype
def test_silu_and_mul_equals_reference(isa: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = (torch.randn(shape) * 4).to(dtype)
        with running(isa), kernel_runs("silu_and_mul"):
            actual = ops.silu_and_mul(x)
        assert_near(actual, silu_and_mul_reference(x))


@every_isa
@every_dtype
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_and_mul_equals_reference(isa: str, dtype: torch.dtype, tanh: bool) -> None:
    for shape in SHAPES:
        x = (torch.randn(shape) * 4).to(dtype)
        with running(isa), kernel_runs("gelu_and_mul"):
            actual = ops.gelu_and_mul(x, tanh)
        assert_near(actual, gelu_and_mul_reference(x, tanh))


@every_isa
@every_dtype
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_equals_reference(isa: str, dtype: torch.dtype, tanh: bool) -> None:
    for shape in [*SHAPES, (3, 1), (2, 17)]:
        x = (torch.randn(shape) * 4).to(dtype)
        with running(isa), kernel_runs("gelu"):
            actual = ops.gelu(x, tanh)
        assert_near(actual, gelu_reference(x, tanh))


@every_isa
def test_whole_range_in_float64(isa: str) -> None:
    gate = torch.cat((torch.linspace(-110, 110, 4001), torch.tensor([0.0, -0.0, 1e-30, 3e38])))
    x = torch.cat((gate, torch.ones_like(gate))).unsqueeze(0)
    wide = gate.double()
    with running(isa):
        assert_near(ops.silu_and_mul(x)[0], functional.silu(wide).float(), 1e-6)
        assert_near(ops.gelu_and_mul(x, False)[0], functional.gelu(wide).float(), 1e-6)
        tanh = functional.gelu(wide[:-1], approximate="tanh").float()
        assert_near(ops.gelu_and_mul(x, True)[0, :-1], tanh, 1e-6)
        assert_near(ops.gelu(gate, False), functional.gelu(wide).float(), 1e-6)


@every_isa
def test_nan_stays(isa: str) -> None:
    x = torch.full((1, 64), float("nan"))
    with running(isa):
        assert ops.silu_and_mul(x).isnan().all()
        assert ops.gelu_and_mul(x, True).isnan().all()
        assert ops.gelu(x, False).isnan().all()


@every_isa
def test_column_slice(isa: str) -> None:
    x = torch.randn(5, 100)[:, 7:81]
    with running(isa):
        assert_near(ops.silu_and_mul(x), silu_and_mul_reference(x))
        assert_near(ops.gelu(x, False), gelu_reference(x, False))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,)])
def test_nothing(shape: tuple[int, ...]) -> None:
    expected = (*shape[:-1], shape[-1] // 2)
    assert ops.silu_and_mul(torch.empty(shape)).shape == expected
    assert ops.gelu_and_mul(torch.empty(shape), True).shape == expected
    assert ops.gelu(torch.empty(shape), True).shape == shape


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(
        RuntimeError, match=r"silu_and_mul: x is float32 \[2, 7\]; expected an even"
    ):
        ops.silu_and_mul(torch.zeros(2, 7))
    with pytest.raises(RuntimeError, match="gelu_and_mul: x is int64"):
        ops.gelu_and_mul(torch.zeros(2, 8, dtype=torch.int64), True)
    with pytest.raises(RuntimeError, match="gelu: x is int64"):
        ops.gelu(torch.zeros(2, 8, dtype=torch.int64), True)
    with pytest.raises(RuntimeError, match="gaps within its last 1 dimensions"):
        ops.silu_and_mul(torch.zeros(8, 2).T)


def test_operators_are_traceable() -> None:
    tests = ("test_schema", "test_faketensor")
    x = torch.randn(3, 8)
    torch.library.opcheck(torch.ops.rtp_llm.silu_and_mul.default, (x,), test_utils=tests)
    torch.library.opcheck(torch.ops.rtp_llm.gelu_and_mul.default, (x, True), test_utils=tests)
    torch.library.opcheck(torch.ops.rtp_llm.gelu.default, (x, True), test_utils=tests)

# SPDX-License-Identifier: Apache-2.0
"""Linear layers with what surrounds them against float64: the kernels, or their references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.testing.operator_checks import DEVICE, kernel_runs

EPS = 1e-6
NATIVE = ops.has_kernel("linear_add", DEVICE)
# Relative to the norm of the expected tensor: rounding of what is multiplied, and of the result.
TOLERANCES = {torch.bfloat16: 6e-3, torch.float16: 1.5e-3}

every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
every_activation = pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
every_offset = pytest.mark.parametrize("offset", [0.0, 1.0])
native_only = pytest.mark.skipif(not NATIVE, reason="limits of kernels that this device lacks")
# (K, O): fewer chunks than warps, odd numbers of them, several for each, more than one block
SHAPES = [(64, 16), (192, 48), (1600, 352), (3072, 96)]
# Large weights are cut by kernels alone.
SHAPES += [(1024, 4096), (2048, 1024), (12288, 32)] if NATIVE else []
MAX_ROWS = 16  # of the kernels, whatever the weight
ROWS = [1, 2, 3, 5, 7, 8, 9, 13, 16]
# Of products followed by at most a gate, on GPUs that have kernels for more rows.
MAX_MULTIPLIED = 64
MORE_ROWS = [17, 24, 31, 32, 33, 47, 63, 64]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there are no kernels, the references are tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


class Case:
    """Random arguments of one product, with gaps between the rows of x."""

    def __init__(self, rows: int, columns: int, outputs: int, dtype: torch.dtype) -> None:
        gap = 8 * (rows % 2)
        self.x = (torch.randn(rows, columns + gap) * 3).to(dtype)[:, :columns]
        self.weight = (torch.randn(outputs, columns) / columns**0.5).to(dtype)
        self.bias = torch.randn(outputs).to(dtype) if rows % 3 else None
        self.norm_weight = (torch.rand(columns) + 0.5).to(dtype)
        self.dtype = dtype

    def product(self, *, normed: bool, offset: float = 0.0) -> Tensor:
        """The sums in float64."""
        x = self.x.double()
        if normed:
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
            x = x * scale * (self.norm_weight.double() + offset)
        product: Tensor = x @ self.weight.double().T
        return product if self.bias is None else product + self.bias.double()


def every_case(dtype: torch.dtype) -> Iterator[Case]:
    for index, (columns, outputs) in enumerate(SHAPES):
        case = Case(0, columns, outputs, dtype)
        most = ops.fused_linear_rows(case.weight) if NATIVE else MAX_ROWS
        for rows in ROWS[index % 2 :: 2] if columns * outputs > 2**20 else ROWS:
            if rows <= most:
                yield Case(rows, columns, outputs, dtype)


def every_multiplied(dtype: torch.dtype) -> Iterator[Case]:
    """Cases of the products, some of which are streams of the weight."""
    # Tiles of 64, 128 and 192 rows that end with the weight and that do not; several blocks for
    # the columns of one; more than one wave of blocks.
    shapes = SHAPES + ([(4096, 4096), (8192, 1072), (512, 30000), (16384, 208)] if NATIVE else [])
    for columns, outputs in shapes:
        weight = torch.empty(outputs, columns, dtype=dtype)
        most = ops.skinny_linear_rows(weight) if NATIVE else MAX_MULTIPLIED
        every = 2 if columns * outputs > 2**20 else 1
        for rows in ROWS[::every] + MORE_ROWS[::every]:
            if rows <= most:
                yield Case(rows, columns, outputs, dtype)


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.shape == expected.shape
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[dtype], f"relative error {error}"
    # No element is left out or in another's place.
    torch.testing.assert_close(actual.double(), expected, rtol=0.1, atol=0.1)


def gated(product: Tensor, activation: str) -> Tensor:
    gate, up = product.chunk(2, dim=-1)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    form = "tanh" if activation == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(gate, approximate=form) * up


@every_dtype
def test_skinny_linear(dtype: torch.dtype) -> None:
    for case in every_multiplied(dtype):
        actual = ops.skinny_linear(case.x, case.weight, case.bias)
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        check(actual, case.product(normed=False), dtype)


@every_dtype
@every_activation
def test_gated_linear(dtype: torch.dtype, activation: str) -> None:
    for case in every_multiplied(dtype):
        actual = ops.gated_linear(case.x, case.weight, case.bias, activation)
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        check(actual, gated(case.product(normed=False), activation), dtype)


@every_dtype
def test_linear_add_is_in_place(dtype: torch.dtype) -> None:
    for case in every_case(dtype):
        wide = torch.randn(len(case.x), len(case.weight) + 8).to(dtype)
        residual, outside = wide[:, :-8], wide[:, -8:].clone()
        expected = residual.double() + case.product(normed=False)
        ops.linear_add(case.x, case.weight, case.bias, residual)
        check(residual, expected, dtype)
        assert torch.equal(wide[:, -8:], outside)


@every_dtype
@every_offset
def test_norm_linear(dtype: torch.dtype, offset: float) -> None:
    for case in every_case(dtype):
        case.norm_weight -= offset
        actual = ops.norm_linear(case.x, case.norm_weight, EPS, case.weight, case.bias, offset)
        assert actual.dtype == dtype
        assert actual.is_contiguous()
        check(actual, case.product(normed=True, offset=offset), dtype)


@every_dtype
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_the_offset_is_added_before_anything_is_rounded(dtype: torch.dtype, rows: int) -> None:
    case = Case(rows, 1024, 256, dtype)
    case.norm_weight.fill_(0.75 * 2.0**-7)  # 1 + this is 1 + 2**-7 in bfloat16
    case.bias = None
    expected = case.product(normed=True, offset=1.0)
    if NATIVE and rows > ops.fused_linear_rows(case.weight):
        return
    actual = ops.norm_linear(case.x, case.norm_weight, EPS, case.weight, None, 1.0).double()
    ratio = float((actual * expected).sum() / expected.square().sum())
    assert abs(ratio - 1) < 5e-4


@every_dtype
@every_activation
@every_offset
def test_norm_gated_linear(dtype: torch.dtype, activation: str, offset: float) -> None:
    for case in every_case(dtype):
        case.norm_weight -= offset
        actual = ops.norm_gated_linear(
            case.x, case.norm_weight, EPS, case.weight, case.bias, activation, offset
        )
        assert actual.dtype == dtype
        check(actual, gated(case.product(normed=True, offset=offset), activation), dtype)


@every_dtype
def test_linear_float_is_not_rounded_and_takes_all(dtype: torch.dtype) -> None:
    others = (Case(*sizes, dtype) for sizes in ((40, 1024, 512), (3, 72, 24), (70, 65, 7)))
    for case in (*every_multiplied(dtype), *others):
        case.bias = None
        actual = ops.linear_float(case.x, case.weight)
        assert actual.dtype == torch.float32
        assert actual.is_contiguous()
        expected = case.product(normed=False)
        assert (actual - expected).norm() / expected.norm() < 1e-5


@every_dtype
def test_norm_of_large_and_small_rows(dtype: torch.dtype) -> None:
    """What is multiplied stays in the range of the dtype, whatever the size of a row."""
    case = Case(2, 256, 64, dtype)
    case.x = case.x.contiguous()
    case.x[0] *= 4000
    case.x[1] *= 1e-2
    case.norm_weight *= 8
    actual = ops.norm_linear(case.x, case.norm_weight, EPS, case.weight, case.bias)
    check(actual, case.product(normed=True), dtype)


@every_dtype
def test_no_rows(dtype: torch.dtype) -> None:
    case = Case(0, 64, 32, dtype)
    norm = case.norm_weight, EPS, case.weight, case.bias
    assert ops.norm_linear(case.x, *norm).shape == (0, 32)
    assert ops.norm_gated_linear(case.x, *norm, "silu").shape == (0, 16)
    assert ops.linear_float(case.x, case.weight).shape == (0, 32)
    assert ops.skinny_linear(case.x, case.weight).shape == (0, 32)
    assert ops.gated_linear(case.x, case.weight, None, "gelu").shape == (0, 16)
    ops.linear_add(case.x, case.weight, None, torch.zeros(0, 32, dtype=dtype))


@native_only
def test_the_kernels_run() -> None:
    case = Case(4, 128, 32, torch.bfloat16)
    norm = case.norm_weight, EPS, case.weight, case.bias
    with kernel_runs("linear_add"):
        ops.linear_add(case.x, case.weight, None, torch.zeros(4, 32, dtype=torch.bfloat16))
    with kernel_runs("norm_linear"):
        ops.norm_linear(case.x, *norm)
    with kernel_runs("norm_gated_linear"):
        ops.norm_gated_linear(case.x, *norm, "silu")
    with kernel_runs("linear_float"):
        ops.linear_float(case.x, case.weight)
    with kernel_runs("skinny_linear"):
        ops.skinny_linear(case.x, case.weight)
    with kernel_runs("gated_linear"):
        ops.gated_linear(case.x, case.weight, None, "silu")


@native_only
def test_what_kernels_do_not_take_is_named() -> None:
    case = Case(4, 128, 32, torch.bfloat16)
    residual = torch.zeros(4, 32, dtype=torch.bfloat16)
    many = torch.zeros(MAX_ROWS + 1, 128, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=rf"expected at most {MAX_ROWS} rows"):
        ops.linear_add(many, case.weight, None, torch.zeros(17, 32, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match=r"expected multiples of 16 and 64"):
        ops.linear_add(case.x, case.weight[:30], None, residual[:, :30])
    with pytest.raises(RuntimeError, match=r"x is float32 .*; expected bfloat16 or float16"):
        ops.linear_add(case.x.float(), case.weight.float(), None, residual.float())
    with pytest.raises(RuntimeError, match="rows at multiples of 16 bytes"):
        ops.linear_add(torch.zeros(4, 129).bfloat16()[:, 1:], case.weight, None, residual)
    with pytest.raises(RuntimeError, match=r"residual is bfloat16 \[4, 16\]; expected shape"):
        ops.linear_add(case.x, case.weight, None, residual[:, :16])
    with pytest.raises(RuntimeError, match="activation is 'relu'; expected silu, gelu or"):
        ops.norm_gated_linear(case.x, case.norm_weight, EPS, case.weight, None, "relu")
    with pytest.raises(RuntimeError, match="activation is 'relu'; expected silu, gelu or"):
        ops.gated_linear(case.x, case.weight, None, "relu")
    most = ops.skinny_linear_rows(case.weight)
    many = torch.zeros(most + 1, 128, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=rf"expected at most {most} rows"):
        ops.skinny_linear(many, case.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_rows_have_no_logits_of_any_weight(dtype: torch.dtype) -> None:
    for outputs in (8, 32):
        x, weight = torch.empty(0, 128, dtype=dtype), torch.empty(outputs, 128, dtype=dtype)
        assert ops.linear_float(x, weight).shape == (0, outputs)


@native_only
def test_which_weights_are_taken() -> None:
    for columns, outputs in SHAPES:
        weight = torch.empty(outputs, columns, dtype=torch.bfloat16)
        rows = ops.fused_linear_rows(weight)
        assert 0 < rows <= MAX_ROWS
        assert rows <= ops.skinny_linear_rows(weight) <= MAX_MULTIPLIED
    for rows_of in (ops.fused_linear_rows, ops.skinny_linear_rows):
        for shape, dtype in (((40, 128), torch.bfloat16), ((32, 96), torch.float16)):
            assert rows_of(torch.empty(shape, dtype=dtype)) == 0
        assert rows_of(torch.empty(32, 128)) == 0


def test_they_are_traceable() -> None:
    case = Case(3, 64, 32, torch.bfloat16)
    norm = case.norm_weight, EPS, case.weight, case.bias
    calls = {
        "linear_add": (case.x, case.weight, None, torch.zeros(3, 32, dtype=torch.bfloat16)),
        "norm_linear": (case.x, *norm),
        "norm_gated_linear": (case.x, *norm, "gelu"),
        "linear_float": (case.x, case.weight),
        "skinny_linear": (case.x, case.weight, case.bias),
        "gated_linear": (case.x, case.weight, case.bias, "silu"),
    }
    for name, arguments in calls.items():
        overload = getattr(torch.ops.rtp_llm, name).default
        torch.library.opcheck(overload, arguments, test_utils=("test_schema", "test_faketensor"))

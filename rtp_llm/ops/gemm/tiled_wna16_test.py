# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integers packed in tiles against float64: the kernels, or their references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, pack_bytes
from rtp_llm.ops.gemm.skinny_linear_reference import gated
from rtp_llm.ops.gemm.tiled_wna16_layout import (
    TiledWna16,
    empty_codes,
    pack,
    put_codes,
    takes,
    unpack,
    with_numbers,
)
from rtp_llm.testing.operator_checks import DEVICE, kernel_runs

EPS = 1e-6
NATIVE = ops.has_kernel("tiled_wna16_linear", DEVICE)
# Relative to the norm of the expected tensor: rounding of weights, of what is normed, and of the
# result.
TOLERANCES = {torch.bfloat16: 6e-3, torch.float16: 1.5e-3, torch.float32: 6e-3}
every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
# (bits, columns of a group, zero points, dtype of scales)
KINDS = [
    (4, 128, "none", torch.bfloat16),
    (4, 64, "whole", torch.float16),
    (4, 32, "whole", torch.bfloat16),
    (4, 0, "none", torch.float16),
    (8, 128, "whole", torch.bfloat16),
    (8, 32, "none", torch.float16),
    (8, 64, "whole", torch.float16),
    (4, 256, "whole", torch.bfloat16),
]
# Those of GGUF's blocks, for bfloat16.
BLOCKS = [
    (4, 32, "floats", torch.float16),
    (5, 32, "none", torch.float16),
    (5, 32, "floats", torch.bfloat16),
    (6, 16, "none", torch.float16),
]
every_kind = pytest.mark.parametrize(("bits", "group", "zeros", "scales"), [*KINDS, *BLOCKS])
native_only = pytest.mark.skipif(not NATIVE, reason="kernels that this device lacks")
# (K, O): fewer k-blocks than warps, odd numbers of them, several for each, more than one tile
SHAPES = [(256, 32), (768, 96)]
SHAPES += [(4096, 1056), (2176, 8256), (12288, 160), (512, 40064)] if NATIVE else []
ROWS = [1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130, 256, 300, 1030] if NATIVE else [1, 9]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there are no kernels, the references are tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


class Case:
    """A random weight of a kind."""

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        bits: int,
        group: int,
        zeros: str,
        scales: torch.dtype,
    ) -> None:
        columns, outputs = shape
        groups = columns // group if group else 1
        codes = torch.randint(1 << bits, (outputs, columns), dtype=torch.uint8)
        scale = ((torch.rand(outputs, groups) + 0.5) / (columns**0.5 * (1 << bits))).to(scales)
        zero = torch.randint(1 << bits, (outputs, groups), dtype=torch.uint8)
        if zeros != "whole":
            zero.fill_(1 << (bits - 1))
        self.dtype, self.bits, self.columns, self.outputs = dtype, bits, columns, outputs
        group_of = groups_in_order(columns, group).to(codes.device)
        self.floats = dequantize(codes, scale, zero, group_of)
        if (bits, group, zeros, scales) in KINDS:
            self.packed = pack(pack_bytes(codes, bits), scale.float(), zero, bits)
            return
        shift = None
        if zeros == "floats":
            shift = (scale.float() * (torch.rand(outputs, groups) - 0.5) * (1 << bits)).to(scales)
            self.floats += shift.float()[:, group_of]
        packed = empty_codes(outputs, columns, bits, codes.device)
        put_codes(packed, 0, codes, bits)
        self.packed = with_numbers(
            packed, columns, scale.float(), None if shift is None else shift.float()
        )

    def x(self, rows: int) -> Tensor:
        """With gaps between rows."""
        return torch.randn(rows, self.columns + 8).to(self.dtype)[:, : self.columns]

    def bias(self, rows: int) -> Tensor | None:
        return torch.randn(self.outputs).to(self.dtype) if rows % 3 else None

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = x.double() @ self.floats.double().T
        return product if bias is None else product + bias.double()


def cases(dtype: torch.dtype, *kind: object) -> Iterator[tuple[Case, int]]:
    group = kind[1]
    assert isinstance(group, int)
    if kind in BLOCKS and NATIVE and dtype is torch.float16:
        return
    for columns, outputs in SHAPES:
        if group and columns % group:
            continue
        case = Case((columns, outputs), dtype, *kind)  # type: ignore[arg-type]
        for index, rows in enumerate(ROWS):
            if columns * outputs < 2**18 or index % 2 == columns // 256 % 2:
                yield case, rows


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[dtype], f"relative error {error}"
    # No element is left out or in another's place.
    torch.testing.assert_close(actual.double(), expected, rtol=0.1, atol=0.1)


@every_dtype
@every_kind
def test_products(
    dtype: torch.dtype, bits: int, group: int, zeros: str, scales: torch.dtype
) -> None:
    for case, rows in cases(dtype, bits, group, zeros, scales):
        x, bias = case.x(rows), case.bias(rows)
        actual = ops.tiled_wna16_linear(x, *case.packed, bits, bias)
        assert actual.is_contiguous()
        check(actual, case.product(x, bias), dtype)


@every_dtype
@every_kind
def test_gated_products(
    dtype: torch.dtype, bits: int, group: int, zeros: str, scales: torch.dtype
) -> None:
    for number, (case, rows) in enumerate(cases(dtype, bits, group, zeros, scales)):
        x, bias = case.x(rows), case.bias(rows)
        activation = ("silu", "gelu", "gelu_tanh")[number % 3]
        actual = ops.tiled_wna16_linear(x, *case.packed, bits, bias, activation)
        assert actual.is_contiguous()
        check(actual, gated(case.product(x, bias), activation), dtype)


@every_dtype
@every_kind
def test_sums_are_in_place(
    dtype: torch.dtype, bits: int, group: int, zeros: str, scales: torch.dtype
) -> None:
    for case, rows in cases(dtype, bits, group, zeros, scales):
        x, bias = case.x(rows), case.bias(rows)
        wide = torch.randn(rows, case.outputs + 8).to(dtype)
        residual, outside = wide[:, :-8], wide[:, -8:].clone()
        expected = residual.double() + case.product(x, bias)
        ops.tiled_wna16_add(x, *case.packed, bits, bias, residual)
        check(residual, expected, dtype)
        assert torch.equal(wide[:, -8:], outside)


@every_dtype
@every_kind
def test_float_results_and_single_rows(
    dtype: torch.dtype, bits: int, group: int, zeros: str, scales: torch.dtype
) -> None:
    for case, rows in cases(dtype, bits, group, zeros, scales):
        x, bias = case.x(rows), case.bias(rows)
        actual = ops.tiled_wna16_float(x, *case.packed, bits, bias)
        check(actual, case.product(x, bias), torch.float32)
        ids = torch.randint(case.outputs, (rows,), dtype=torch.int32)
        found = torch.empty(rows, case.columns, dtype=dtype)
        ops.tiled_wna16_embedding(ids, *case.packed, bits, found)
        # A kernel may add with or without rounding the product before.
        torch.testing.assert_close(found.float(), case.floats[ids.long()].to(dtype).float())


@every_dtype
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("kind", [KINDS[0], *BLOCKS])
def test_norms(dtype: torch.dtype, offset: float, activation: str, kind: tuple[object]) -> None:
    for case, rows in cases(dtype, *kind):
        x, bias = case.x(rows), case.bias(rows)
        norm_weight = (torch.rand(case.columns) + 0.5 - offset).to(dtype)
        inverse = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
        normed = x.double() * inverse * (norm_weight.double() + offset)
        expected = case.product(normed, bias)
        actual = ops.tiled_wna16_linear(
            x, *case.packed, case.bits, bias, activation, norm_weight, EPS, offset
        )
        check(actual, expected if activation == "none" else gated(expected, activation), dtype)


@every_kind
def test_the_layout_keeps_what_it_is_given(
    bits: int, group: int, zeros: str, scales: torch.dtype
) -> None:
    case = Case((768, 1056), torch.bfloat16, bits, group, zeros, scales)
    assert (case.packed.zero is None) == (zeros == "none")
    assert torch.equal(unpack(case.packed, bits), case.floats)


def test_no_rows() -> None:
    case = Case((256, 64), torch.bfloat16, *KINDS[0])
    assert ops.tiled_wna16_linear(case.x(0), *case.packed, 4).shape == (0, 64)
    assert ops.tiled_wna16_linear(case.x(0), *case.packed, 4, None, "silu").shape == (0, 32)
    residual = torch.empty(0, 64, dtype=torch.bfloat16)
    ops.tiled_wna16_add(case.x(0), *case.packed, 4, None, residual)


def test_which_weights_are_taken() -> None:
    assert takes(4096, 4096, 128)
    assert takes(32, 128, 0)
    assert takes(64, 2048, 1024)
    assert not takes(48, 128, 32)
    assert not takes(64, 192, 32)
    assert not takes(64, 1024, 48)
    assert not takes(64, 384, 256)


@native_only
def test_the_kernel_runs() -> None:
    case = Case((256, 64), torch.bfloat16, *KINDS[0])
    with kernel_runs("tiled_wna16_linear"):
        ops.tiled_wna16_linear(case.x(3), *case.packed, 4)


@native_only
def test_wrong_arguments_are_named() -> None:
    case = Case((256, 64), torch.bfloat16, *KINDS[0])
    weight, scale, zero = case.packed
    x = case.x(3)
    with pytest.raises(RuntimeError, match="bits is 3; expected 4, 5, 6 or 8"):
        ops.tiled_wna16_linear(x, weight, scale, zero, 3)
    with pytest.raises(RuntimeError, match="1 groups of 4 bits with zero points; expected 4"):
        ops.tiled_wna16_linear(x, weight, scale, scale, 4)
    six = Case((256, 64), torch.bfloat16, *BLOCKS[-1]).packed
    with pytest.raises(RuntimeError, match=r"x is .*expected bfloat16"):
        ops.tiled_wna16_linear(x.half(), *six, 6)
    with pytest.raises(RuntimeError, match="tiled_wna16: weight is"):
        ops.tiled_wna16_linear(x, weight, scale, zero, 8)
    with pytest.raises(RuntimeError, match=r"scale is .* of 2 blocks"):
        ops.tiled_wna16_linear(x, weight, scale[:, :, [0, 0]][:1], zero, 4)
    with pytest.raises(RuntimeError, match="expected multiples of 16 and 128"):
        ops.tiled_wna16_linear(x[:, :192].contiguous(), weight, scale, zero, 4)
    with pytest.raises(RuntimeError, match="activation is 'relu'"):
        ops.tiled_wna16_linear(x, weight, scale, zero, 4, None, "relu")
    odd = TiledWna16(weight[:, :6], scale[:, :48], zero)
    with pytest.raises(RuntimeError, match="expected a multiple of 32 with an activation"):
        packed = [each if each is None else each.contiguous() for each in odd]
        ops.tiled_wna16_linear(x, *packed, 4, None, "silu")

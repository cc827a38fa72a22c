# SPDX-License-Identifier: Apache-2.0
"""Packed linear layers against their reference."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.gemm.packed_layout import pack_columns, unpack_columns
from rtp_llm.ops.gemm.packed_linear_reference import packed_linear_reference
from rtp_llm.testing.operator_checks import ISAS, assert_near, kernel_runs, running

# Rows, outputs and columns: odd ones, several blocks of each, none.
SHAPES = [(1, 1, 1), (5, 64, 33), (13, 100, 70), (97, 130, 20), (7, 65, 800), (0, 8, 8), (3, 5, 0)]

every_isa = pytest.mark.parametrize("isa", ISAS)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_isa
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh"])
def test_packed_linear_equals_reference(isa: str, activation: str) -> None:
    for rows, outputs, columns in SHAPES:
        x, weight = torch.randn(rows, columns + 3)[:, :columns], torch.randn(outputs, columns)
        packed = pack_columns(weight * max(columns, 1) ** -0.5)
        for bias in (None, torch.randn(outputs)):
            with running(isa), kernel_runs("packed_linear"):
                actual = ops.packed_linear(x, packed, bias, outputs, activation)
            assert actual.is_contiguous()
            assert_near(actual, packed_linear_reference(x, packed, bias, outputs, activation), 1e-5)


@every_isa
def test_a_row_has_the_same_bits_in_every_batch(isa: str) -> None:
    x, packed = torch.randn(200, 500), pack_columns(torch.randn(70, 500))
    with running(isa):
        whole = ops.packed_linear(x, packed, None, 70)
        for rows in (slice(0, 1), slice(3, 10), slice(90, 200)):
            assert torch.equal(ops.packed_linear(x[rows], packed, None, 70), whole[rows])


@pytest.mark.parametrize("outputs", [1, 64, 100])
def test_packing_is_undone(outputs: int) -> None:
    weight = torch.randn(outputs, 7)
    assert torch.equal(unpack_columns(pack_columns(weight), outputs), weight)


def test_wrong_arguments_are_named() -> None:
    x, packed = torch.zeros(3, 8), pack_columns(torch.zeros(70, 8))
    with pytest.raises(
        RuntimeError, match=r"weight is float32 \[2, 8, 64\]; expected shape \[1, 8"
    ):
        ops.packed_linear(x, packed, None, 64)
    with pytest.raises(RuntimeError, match=r"x is bfloat16 \[3, 8\]; expected float32"):
        ops.packed_linear(x.bfloat16(), packed, None, 70)
    with pytest.raises(RuntimeError, match=r"bias is float32 \[5\]; expected shape \[70\]"):
        ops.packed_linear(x, packed, torch.zeros(5), 70)
    with pytest.raises(RuntimeError, match="activation is relu; expected none, gelu or gelu_tanh"):
        ops.packed_linear(x, packed, None, 70, "relu")


def test_it_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.packed_linear.default,
        (torch.randn(3, 8), pack_columns(torch.randn(70, 8)), None, 70, "gelu"),
        test_utils=("test_schema", "test_faketensor"),
    )

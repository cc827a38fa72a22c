# SPDX-License-Identifier: Apache-2.0
"""Gates against their references: instruction sets, dtypes, odd sizes, strides, errors."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.activation.sigmoid_gate_reference import (
    add_sigmoid_gated_reference,
    sigmoid_gate_reference,
)
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, assert_near, kernel_runs, running

SHAPES = [
    (1, 1),
    (3, 7),
    (2, 15),
    (5, 16),
    (4, 33),
    (3, 2, 100),
    (2, 16, 256),
    (9, 4096),
    (1, 2049),
]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_isa
@every_dtype
def test_sigmoid_gate_equals_reference(isa: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x, gate = torch.randn(shape).to(dtype), (torch.randn(shape) * 4).to(dtype)
        expected = x.clone()
        sigmoid_gate_reference(expected, gate)
        with running(isa), kernel_runs("sigmoid_gate"):
            ops.sigmoid_gate(x, gate)
        assert_near(x, expected)


@every_isa
@every_dtype
def test_strides_are_free_and_gaps_stay(isa: str, dtype: torch.dtype) -> None:
    # A gate after other columns of a product, and heads interleaved with others.
    wide = torch.randn(5, 7 + 3 * 40).to(dtype)
    packed = torch.randn(6, 4, 3 * 32).to(dtype)
    cases = [
        (wide[:, 7:47], torch.randn(5, 90).to(dtype)[:, 50:]),
        (packed[:, :, 32:64], torch.randn(6, 4, 64).to(dtype)[..., 32:]),
        (packed.transpose(0, 1)[..., :32], torch.randn(4, 6, 32).to(dtype)),
        (torch.randn(5, 40).to(dtype), wide[:, 80:120]),
    ]
    for x, gate in cases:
        expected, before = x.clone(), (wide.clone(), packed.clone())
        sigmoid_gate_reference(expected, gate)
        with running(isa):
            ops.sigmoid_gate(x, gate)
        assert_near(x.contiguous(), expected.contiguous())
        x.zero_()
        for all_of, old in zip((wide, packed), before, strict=True):
            assert torch.equal(all_of[all_of != 0], old[all_of != 0])


@every_isa
def test_whole_range_in_float64(isa: str) -> None:
    gate = torch.cat((torch.linspace(-110, 110, 4001), torch.tensor([0.0, -0.0, 3e38, -3e38])))
    x = torch.ones_like(gate)[None]
    with running(isa):
        ops.sigmoid_gate(x, gate[None])
    assert_near(x[0], gate.double().sigmoid().float(), 1e-6)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 2, 8), (2, 0, 8)])
def test_nothing(shape: tuple[int, ...]) -> None:
    ops.sigmoid_gate(torch.empty(shape), torch.empty(shape))


def test_wrong_arguments_are_named() -> None:
    x = torch.zeros(3, 8)
    with pytest.raises(RuntimeError, match=r"sigmoid_gate: gate is float32 \[3, 7\]"):
        ops.sigmoid_gate(x, torch.zeros(3, 7))
    with pytest.raises(RuntimeError, match="sigmoid_gate: gate is bfloat16"):
        ops.sigmoid_gate(x, x.bfloat16())
    with pytest.raises(RuntimeError, match="sigmoid_gate: x is int32"):
        ops.sigmoid_gate(x.int(), x)
    with pytest.raises(RuntimeError, match="gaps within its last 1 dim"):
        ops.sigmoid_gate(x.T, x.T)


def test_sigmoid_gate_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.sigmoid_gate.default,
        (torch.randn(3, 8), torch.randn(3, 8)),
        test_utils=("test_schema", "test_faketensor"),
    )


def gated(rows: int, size: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """out, y, x and gate; logits are of about 2."""
    made = (torch.randn(rows, size), torch.randn(rows, size), torch.randn(rows, depth))
    gate = 2 * torch.randn(1, depth) / depth**0.5
    return tuple(each.to(dtype) for each in (*made, gate))


@every_isa
@every_dtype
@pytest.mark.parametrize(
    ("rows", "size", "depth"),
    [
        (1, 1, 1),
        (3, 7, 33),
        (2, 16, 15),
        (5, 130, 64),
        (1, 2048, 2048),
        (300, 72, 40),
        (2, 8, 4100),
    ],
)
def test_add_sigmoid_gated_equals_reference(
    isa: str, dtype: torch.dtype, rows: int, size: int, depth: int
) -> None:
    out, y, x, gate = gated(rows, size, depth, dtype)
    expected = out.clone()
    add_sigmoid_gated_reference(expected, y, x, gate)
    with running(isa), kernel_runs("add_sigmoid_gated"):
        ops.add_sigmoid_gated(out, y, x, gate)
    assert_near(out, expected)


@pytest.mark.parametrize("shape", [(0, 8, 8), (3, 0, 8), (3, 8, 0)])
def test_add_sigmoid_gated_of_nothing(shape: tuple[int, int, int]) -> None:
    out, y, x, gate = gated(*shape, torch.float32)
    expected = out + y / 2 if not shape[2] else out.clone()
    ops.add_sigmoid_gated(out, y, x, gate)
    assert torch.equal(out, expected)


def test_gates_far_from_zero_take_all_or_nothing() -> None:
    x = torch.tensor([[3e38], [-3e38], [200.0], [-200.0]])
    out = torch.ones(4, 3)
    ops.add_sigmoid_gated(out, torch.ones(4, 3), x, torch.ones(1, 1))
    assert torch.equal(out[:, 0], torch.tensor([2.0, 1.0, 2.0, 1.0]))


def test_wrong_arguments_of_add_sigmoid_gated_are_named() -> None:
    out, y, x, gate = gated(3, 8, 16, torch.float32)
    with pytest.raises(RuntimeError, match=r"add_sigmoid_gated: y is float32 \[3, 7\]"):
        ops.add_sigmoid_gated(out, y[:, :7].contiguous(), x, gate)
    with pytest.raises(RuntimeError, match=r"add_sigmoid_gated: x is float32 \[2, 16\]"):
        ops.add_sigmoid_gated(out, y, x[:2], gate)
    with pytest.raises(RuntimeError, match="add_sigmoid_gated: gate is bfloat16"):
        ops.add_sigmoid_gated(out, y, x, gate.bfloat16())
    with pytest.raises(RuntimeError, match=r"add_sigmoid_gated: gate is float32 \[1, 15\]"):
        ops.add_sigmoid_gated(out, y, x, gate[:, :15].contiguous())
    with pytest.raises(RuntimeError, match="add_sigmoid_gated: out"):
        ops.add_sigmoid_gated(out.T, y.T, x, gate)


def test_add_sigmoid_gated_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.add_sigmoid_gated.default,
        gated(3, 8, 16, torch.float32),
        test_utils=("test_schema", "test_faketensor"),
    )

"""The output gate against its reference: instruction sets, dtypes, odd sizes, strides, errors."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.activation.sigmoid_gate_reference import sigmoid_gate_reference
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
    # A gate behind other columns of a product, and heads that lie in turn with others.
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

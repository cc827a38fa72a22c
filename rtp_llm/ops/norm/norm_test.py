# SPDX-License-Identifier: Apache-2.0
"""Norms against their references: every instruction set and dtype, odd sizes, strides, errors."""

from __future__ import annotations

import importlib

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.norm.norm_reference import (
    fused_add_layer_norm_reference,
    fused_add_rms_norm_reference,
    gated_rms_norm_reference,
    layer_norm_reference,
    qk_rms_norm_reference,
    rms_norm_reference,
)
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, assert_near, kernel_runs, running

EPS = 1e-6
SHAPES = [(1, 1), (3, 7), (2, 15), (5, 16), (4, 17), (1, 33), (2, 3, 64), (7, 100), (257, 512)]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
every_offset = pytest.mark.parametrize("offset", [0.0, 1.0])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_isa
@every_dtype
@every_offset
def test_rms_norm_equals_reference(isa: str, dtype: torch.dtype, offset: float) -> None:
    for shape in SHAPES:
        x = (torch.randn(shape) * 3).to(dtype)
        weight = torch.randn(shape[-1]).to(dtype)
        with running(isa), kernel_runs("rms_norm"):
            actual = ops.rms_norm(x, weight, EPS, offset)
        assert_near(actual, rms_norm_reference(x, weight, EPS, offset))


@every_isa
@pytest.mark.parametrize("size", [512, 20000])
def test_the_offset_is_added_in_float32(isa: str, size: int) -> None:
    # Rounded to bfloat16, 1 + weight would be 1.
    x, weight = torch.randn(64, size).bfloat16(), torch.full((size,), 2.0**-9).bfloat16()
    plain = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    with running(isa):
        normed = ops.rms_norm(x, weight, EPS, 1.0)
        added = x.clone()
        ops.fused_add_rms_norm(added, torch.zeros_like(x), weight, EPS, 1.0)
    assert torch.equal(added, normed)
    ratio = (normed.double() * plain).sum() / plain.square().sum()
    assert abs(float(ratio) - (1 + 2.0**-9)) < 2e-4


@every_isa
@every_dtype
def test_norms_with_an_offset_are_those_of_qwen3_next(isa: str, dtype: torch.dtype) -> None:
    models = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    layer = models.Qwen3NextRMSNorm(96, eps=EPS)
    torch.nn.init.normal_(layer.weight)
    layer.to(dtype)
    x = torch.randn(11, 96).to(dtype)
    with torch.no_grad(), running(isa):
        assert_near(ops.rms_norm(x, layer.weight, EPS, 1.0), layer(x))


@every_isa
def test_rms_norm_of_column_slice(isa: str) -> None:
    wide = torch.randn(9, 50)
    x = wide[:, 3:40]
    weight = torch.randn(37)
    with running(isa):
        assert_near(ops.rms_norm(x, weight, EPS), rms_norm_reference(x, weight, EPS))


def test_rms_norm_keeps_small_and_large_values() -> None:
    x = torch.stack((torch.full((64,), 1e-4), torch.full((64,), 1e4)))
    expected = torch.stack((torch.full((64,), 1e-4 / (1e-8 + EPS) ** 0.5), torch.ones(64)))
    assert_near(ops.rms_norm(x, torch.ones(64), EPS), expected)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (2, 0, 8)])
def test_rms_norm_of_nothing(shape: tuple[int, ...]) -> None:
    assert ops.rms_norm(torch.empty(shape), torch.empty(shape[-1]), EPS).shape == shape


def test_row_does_not_depend_on_its_batch() -> None:
    x = torch.randn(300, 96)
    weight = torch.randn(96)
    together = ops.rms_norm(x, weight, EPS)
    assert torch.equal(together[123:124], ops.rms_norm(x[123:124], weight, EPS))


@every_isa
@every_dtype
@every_offset
def test_fused_add_rms_norm_equals_reference(isa: str, dtype: torch.dtype, offset: float) -> None:
    for shape in SHAPES:
        x, residual = (torch.randn(shape).to(dtype) for _ in range(2))
        weight = torch.randn(shape[-1]).to(dtype)
        expected_x, expected_residual = x.clone(), residual.clone()
        fused_add_rms_norm_reference(expected_x, expected_residual, weight, EPS, offset)
        with running(isa), kernel_runs("fused_add_rms_norm"):
            ops.fused_add_rms_norm(x, residual, weight, EPS, offset)
        assert torch.equal(residual, expected_residual)
        assert_near(x, expected_x)


@every_isa
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_number_is_read_and_rounded_as_torch_does(
    isa: str, dtype: torch.dtype
) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every.reshape(-1, 64)
    for residual in (torch.zeros_like(every), every.flip(0), every * 0.37):
        total = residual.clone()
        with running(isa):
            ops.fused_add_rms_norm(every.clone(), total, torch.ones(64, dtype=dtype), EPS)
        torch.testing.assert_close(total, residual + every, rtol=0, atol=0, equal_nan=True)


def test_fused_add_rms_norm_leaves_gaps_of_strided_rows_alone() -> None:
    x, residual = torch.randn(6, 40), torch.randn(6, 30)
    before = x.clone()
    expected_x, expected_residual = x[:, 4:28].clone(), residual[:, :24].clone()
    fused_add_rms_norm_reference(expected_x, expected_residual, torch.ones(24), EPS)
    ops.fused_add_rms_norm(x[:, 4:28], residual[:, :24], torch.ones(24), EPS)
    assert_near(x[:, 4:28], expected_x)
    assert torch.equal(x[:, :4], before[:, :4])
    assert torch.equal(x[:, 28:], before[:, 28:])


@every_isa
@every_dtype
@every_offset
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (7, 1)])
def test_qk_rms_norm_equals_reference(
    isa: str, dtype: torch.dtype, heads: tuple[int, int], offset: float
) -> None:
    for tokens, head_dim in ((1, 64), (5, 80), (3, 7), (2, 256), (0, 128)):
        width = (heads[0] + 2 * heads[1]) * head_dim
        qkv = torch.randn(tokens, width + 5).to(dtype)[:, :width]
        q_weight, k_weight = (torch.randn(head_dim).to(dtype) for _ in range(2))
        expected = qkv.contiguous()
        qk_rms_norm_reference(expected, q_weight, k_weight, *heads, EPS, offset)
        with running(isa), kernel_runs("qk_rms_norm"):
            ops.qk_rms_norm(qkv, q_weight, k_weight, *heads, EPS, offset)
        assert_near(qkv.contiguous(), expected)


def test_wrong_arguments_are_named() -> None:
    x, weight = torch.zeros(3, 8), torch.zeros(8)
    with pytest.raises(RuntimeError, match=r"rms_norm: weight is float32 \[5\]; expected shape"):
        ops.rms_norm(x, torch.zeros(5), EPS)
    with pytest.raises(RuntimeError, match=r"rms_norm: weight is float16 \[8\]; expected float32"):
        ops.rms_norm(x, weight.half(), EPS)
    with pytest.raises(RuntimeError, match=r"rms_norm: x is int32 \[3, 8\]; expected float32"):
        ops.rms_norm(x.int(), weight, EPS)
    with pytest.raises(RuntimeError, match=r"rms_norm: x .* gaps within its last 1 dim"):
        ops.rms_norm(torch.zeros(8, 3).T, weight, EPS)
    with pytest.raises(RuntimeError, match=r"rms_norm: x .* not contiguous"):
        ops.rms_norm(torch.zeros(2, 3, 16)[..., :8], weight, EPS)
    with pytest.raises(RuntimeError, match="expected at least 1 dimension"):
        ops.rms_norm(torch.zeros(()), weight, EPS)
    with pytest.raises(RuntimeError, match=r"residual is float32 \[2, 8\]; expected shape \[3, 8"):
        ops.fused_add_rms_norm(x, torch.zeros(2, 8), weight, EPS)
    with pytest.raises(RuntimeError, match="the same memory"):
        ops.fused_add_rms_norm(x, x, weight, EPS)
    with pytest.raises(RuntimeError, match=r"expected rows of 2 \+ 2 \* 1 heads"):
        ops.qk_rms_norm(torch.zeros(3, 7), weight, weight, 2, 1, EPS)
    with pytest.raises(RuntimeError, match=r"k_weight is float32 \[3\]; expected shape \[2\]"):
        ops.qk_rms_norm(x, torch.zeros(2), torch.zeros(3), 2, 1, EPS)


def gated_inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, gate = ((torch.randn(shape) * 3).to(dtype) for _ in range(2))
    return x, gate, torch.randn(shape[-1]).to(dtype)


@every_isa
@every_dtype
def test_gated_rms_norm_equals_reference(isa: str, dtype: torch.dtype) -> None:
    for shape in [*SHAPES, (3, 5, 128), (2, 2, 3, 17), (301, 128), (5, 3, 256), (2, 1200)]:
        inputs = gated_inputs(shape, dtype)
        with running(isa), kernel_runs("gated_rms_norm"):
            actual = ops.gated_rms_norm(*inputs, EPS)
        assert_near(actual, gated_rms_norm_reference(*inputs, EPS))


@every_isa
def test_gated_rms_norm_of_strided_tokens_and_heads(isa: str) -> None:
    wide = torch.randn(6, 9, 80)
    x, gate, weight = wide[::2, 1:5, 3:67], wide[1::2, 4:8, 16:], torch.randn(64)
    with running(isa):
        assert_near(
            ops.gated_rms_norm(x, gate, weight, EPS), gated_rms_norm_reference(x, gate, weight, EPS)
        )
        x, gate = wide[:, 0, 3:67], wide[:, 1, 16:]
        assert_near(
            ops.gated_rms_norm(x, gate, weight, EPS), gated_rms_norm_reference(x, gate, weight, EPS)
        )


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 3, 8), (3, 0, 8), (2, 3, 0)])
def test_gated_rms_norm_of_nothing(shape: tuple[int, ...]) -> None:
    empty = torch.empty(shape)
    assert ops.gated_rms_norm(empty, empty, torch.empty(shape[-1]), EPS).shape == shape


@every_dtype
def test_gated_rms_norm_is_that_of_transformers(dtype: torch.dtype) -> None:
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    x, gate, weight = gated_inputs((40, 128), dtype)
    layer = module.Qwen3NextRMSNormGated(128, eps=EPS).to(dtype).to(x.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert_near(ops.gated_rms_norm(x, gate, weight, EPS), layer(x, gate))


def test_gated_rms_norm_refuses_what_does_not_fit() -> None:
    x, gate, weight = gated_inputs((4, 8), torch.float32)
    with pytest.raises(RuntimeError, match=r"gated_rms_norm: gate is float32 \[3, 8\]"):
        ops.gated_rms_norm(x, gate[:3], weight, EPS)
    with pytest.raises(RuntimeError, match="gated_rms_norm: gate is bfloat16"):
        ops.gated_rms_norm(x, gate.bfloat16(), weight, EPS)
    with pytest.raises(RuntimeError, match=r"gated_rms_norm: weight is float32 \[7\]"):
        ops.gated_rms_norm(x, gate, weight[:7], EPS)
    with pytest.raises(RuntimeError, match="has gaps"):
        ops.gated_rms_norm(x[:, ::2], gate[:, ::2], weight[:4], EPS)


@every_isa
@every_dtype
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_norm_equals_reference(isa: str, dtype: torch.dtype, has_bias: bool) -> None:
    for shape in [*SHAPES, (2, 1200), (3, 9000)]:
        x = (torch.randn(shape) * 3 + 1).to(dtype)
        weight, bias = (torch.randn(shape[-1]).to(dtype) for _ in range(2))
        optional = bias if has_bias else None
        with running(isa), kernel_runs("layer_norm"):
            actual = ops.layer_norm(x, weight, optional, EPS)
        assert_near(actual, layer_norm_reference(x, weight, optional, EPS))
        exact = torch.nn.functional.layer_norm(
            x.double(), shape[-1:], weight.double(), bias.double() if has_bias else None, EPS
        )
        if shape[-1] > 1:  # the sign of a single element's rounding error means nothing
            assert_near(actual, exact.to(dtype))


@every_isa
@every_dtype
@pytest.mark.parametrize("has_bias", [False, True])
def test_fused_add_layer_norm_equals_reference(
    isa: str, dtype: torch.dtype, has_bias: bool
) -> None:
    for shape in SHAPES:
        x, residual = (torch.randn(shape).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(shape[-1]).to(dtype) for _ in range(2))
        optional = bias if has_bias else None
        expected_x, expected_residual = x.clone(), residual.clone()
        fused_add_layer_norm_reference(expected_x, expected_residual, weight, optional, EPS)
        with running(isa), kernel_runs("fused_add_layer_norm"):
            ops.fused_add_layer_norm(x, residual, weight, optional, EPS)
        assert torch.equal(residual, expected_residual)
        assert_near(x, expected_x)


@every_isa
def test_layer_norm_keeps_the_variance_of_values_far_from_zero(isa: str) -> None:
    x = torch.randn(5, 300) + 4096
    with running(isa):
        actual = ops.layer_norm(x, torch.ones(300), None, EPS)
    exact = torch.nn.functional.layer_norm(x.double(), (300,), eps=EPS)
    torch.testing.assert_close(actual.double(), exact, rtol=2e-3, atol=2e-3)


@every_isa
def test_layer_norms_of_strided_rows(isa: str) -> None:
    wide, weight, bias = torch.randn(9, 50), torch.randn(37), torch.randn(37)
    x = wide[::2, 3:40]
    with running(isa):
        assert_near(
            ops.layer_norm(x, weight, bias, EPS), layer_norm_reference(x, weight, bias, EPS)
        )
        before, residual = wide.clone(), torch.randn(5, 41)[:, 2:39]
        expected_x, expected_residual = x.clone(), residual.clone()
        fused_add_layer_norm_reference(expected_x, expected_residual, weight, bias, EPS)
        ops.fused_add_layer_norm(x, residual, weight, bias, EPS)
    assert torch.equal(residual, expected_residual)
    assert_near(x, expected_x)
    assert torch.equal(wide[1::2], before[1::2])
    assert torch.equal(wide[:, :3], before[:, :3])
    assert torch.equal(wide[:, 40:], before[:, 40:])


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (2, 0, 8)])
def test_layer_norms_of_nothing(shape: tuple[int, ...]) -> None:
    empty, weight = torch.empty(shape), torch.empty(shape[-1])
    assert ops.layer_norm(empty, weight, weight, EPS).shape == shape
    ops.fused_add_layer_norm(empty, torch.empty(shape), weight, None, EPS)


def test_layer_norms_refuse_what_does_not_fit() -> None:
    x, weight = torch.zeros(3, 8), torch.zeros(8)
    with pytest.raises(RuntimeError, match=r"layer_norm: weight is float32 \[5\]; expected shape"):
        ops.layer_norm(x, torch.zeros(5), None, EPS)
    with pytest.raises(RuntimeError, match=r"layer_norm: bias is float16 \[8\]; expected float32"):
        ops.layer_norm(x, weight, weight.half(), EPS)
    with pytest.raises(RuntimeError, match=r"layer_norm: x is int32 \[3, 8\]; expected float32"):
        ops.layer_norm(x.int(), weight, None, EPS)
    with pytest.raises(RuntimeError, match=r"residual is float32 \[2, 8\]; expected shape \[3, 8"):
        ops.fused_add_layer_norm(x, torch.zeros(2, 8), weight, None, EPS)
    with pytest.raises(RuntimeError, match="the same memory"):
        ops.fused_add_layer_norm(x, x, weight, None, EPS)


def test_operators_are_traceable() -> None:
    x, weight, qkv = torch.randn(3, 8), torch.randn(8), torch.randn(3, 32)
    space = torch.ops.rtp_llm
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(space.rms_norm.default, (x, weight, EPS), test_utils=tests)
    torch.library.opcheck(
        space.fused_add_rms_norm.default, (x, x.clone(), weight, EPS), test_utils=tests
    )
    torch.library.opcheck(
        space.qk_rms_norm.default, (qkv, weight, weight, 2, 1, EPS), test_utils=tests
    )
    torch.library.opcheck(
        space.gated_rms_norm.default, (x, x.clone(), weight, EPS), test_utils=tests
    )
    torch.library.opcheck(space.layer_norm.default, (x, weight, None, EPS), test_utils=tests)
    torch.library.opcheck(
        space.fused_add_layer_norm.default, (x, x.clone(), weight, weight, EPS), test_utils=tests
    )

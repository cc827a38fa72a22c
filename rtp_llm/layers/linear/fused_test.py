# SPDX-License-Identifier: Apache-2.0
"""Fused linear layers compute what plain ones do, by their operators or without them."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions, RMSNorm, make_linear
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import PlainLinear, plain_float_product
from rtp_llm.layers.linear.factory import make_float_product
from rtp_llm.layers.linear.fused import FusedLinear

COLUMNS, ROWS = 128, 64
# Rows that are fused, that a kernel of ours multiplies alone, and that a library's does.
FEW, MORE, MANY = 5, 6, 7
OPTIONS = LayerOptions(ModelSettings(dtype="bfloat16"), torch.device("cpu"))
few_or_many = pytest.mark.parametrize("rows", [1, FEW, MORE, MANY])


@pytest.fixture(autouse=True)
def _references():
    torch.manual_seed(0)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def filled(layer):
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / COLUMNS**0.5)
    return layer


def pair(bias=True):
    """A fused and a plain layer of the same weights."""
    fused, plain = (
        filled(kind(COLUMNS, {"x": ROWS}, bias, OPTIONS)) for kind in (FusedLinear, PlainLinear)
    )
    fused.load_state_dict(plain.state_dict())
    fused.max_rows, fused.max_multiplied_rows = FEW, MORE
    return fused, plain


def norm(offset):
    layer = RMSNorm(COLUMNS, 1e-6, OPTIONS, offset)
    layer.weight.data.copy_(torch.rand(COLUMNS) + 0.5 - offset)
    return layer


def random(rows, columns):
    return torch.randn(rows, columns).bfloat16()


def close(actual, expected):
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=3e-2)


@few_or_many
def test_what_is_added_comes_at_once_or_is_left_to_the_caller(rows):
    fused, plain = pair()
    x, residual = random(rows, COLUMNS), random(rows, ROWS)
    expected = residual + plain(x)
    left = fused.add_to(residual, x)
    assert (left is None) == (rows <= FEW)
    close(residual if left is None else residual + left, expected)
    assert torch.equal(plain.add_to(residual, x), plain(x))


@few_or_many
@pytest.mark.parametrize("with_pending", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_and_gates_give_the_same(rows, with_pending, offset):
    fused, plain = pair()
    layer_norm, activation = norm(offset), GatedActivation("silu")
    residual = random(rows, COLUMNS)
    pending = random(rows, COLUMNS) if with_pending else None

    def arguments():
        return layer_norm, residual.clone(), None if pending is None else pending.clone()

    close(fused.normed(*arguments()), plain.normed(*arguments()))
    close(
        fused.normed_gated(*arguments(), activation), plain.normed_gated(*arguments(), activation)
    )
    # The sum is left in the residual, whoever made it.
    for layer in (fused, plain):
        _, sums, added = arguments()
        layer.normed(layer_norm, sums, added)
        assert torch.equal(sums, residual if pending is None else residual + pending)


@few_or_many
def test_products_in_float32(rows):
    for bias in (False, True):
        fused, plain = pair(bias)
        x = random(rows, COLUMNS)
        assert fused.float_product(x).dtype == plain.float_product(x).dtype == torch.float32
        close(fused.float_product(x), plain.float_product(x))


def test_layers_are_fused_where_the_device_can(monkeypatch):
    weight = random(ROWS, COLUMNS)
    int8 = LayerOptions(ModelSettings(dtype="bfloat16", quantization="int8"), torch.device("cpu"))
    assert type(make_linear(COLUMNS, {"x": ROWS}, False, OPTIONS)) is PlainLinear
    assert make_float_product(weight) is plain_float_product
    monkeypatch.setattr(ops, "has_kernel", lambda name, device: device == "cpu")
    assert type(make_linear(COLUMNS, {"x": ROWS}, False, OPTIONS)) is FusedLinear
    assert make_float_product(weight) is ops.linear_float
    assert make_float_product(weight.float()) is plain_float_product
    assert not isinstance(make_linear(COLUMNS, {"x": ROWS}, False, int8), FusedLinear)


def test_an_unknown_activation_lists_the_known_ones():
    with pytest.raises(ValueError, match="'relu' is unknown; valid: silu, gelu, gelu_tanh"):
        GatedActivation("relu")

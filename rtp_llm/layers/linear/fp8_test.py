# SPDX-License-Identifier: Apache-2.0
"""FP8 linear layers: fused parts equal separate ones, ways to fill them, the choice of a kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import (
    GatedMLP,
    LayerOptions,
    RMSNorm,
    finish_loading,
    make_linear,
    rows_together,
    weight_targets,
)
from rtp_llm.layers.linear.base import Linear, PlainLinear
from rtp_llm.layers.linear.factory import KINDS, LinearKind
from rtp_llm.layers.linear.fp8 import Fp8Linear
from rtp_llm.layers.linear.int8 import Int8Linear
from rtp_llm.layers.weights.fp8_formats import Fp8Block
from rtp_llm.quantization.fp8 import dequantize_blocks, quantize_blocks

CPU = torch.device("cpu")
# The last part of the second and two of the third are no whole blocks; nor are the third's columns.
FUSED = [
    ({"q_proj": 256, "k_proj": 128, "v_proj": 128}, 384),
    ({"q_proj": 128, "k_proj": 72}, 128),
    ({"gate_proj": 160, "up_proj": 160, "z": 5}, 200),
]
every_fusion = pytest.mark.parametrize(("parts", "columns"), FUSED)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def options(quantization="none", dtype="bfloat16", products=True, stored=()):
    formats = dict.fromkeys(stored, Fp8Block())
    settings = ModelSettings(dtype=dtype, quantization=quantization)
    here = LayerOptions(settings, CPU, path="a.", formats=formats, fp8_products=products)
    return here.inside("b")


def stored(*parts):
    return tuple(f"a.b.{part}" for part in parts)


def blocks_of(weights):
    """The tensors of a checkpoint that has `weights` (name -> float tensor) in FP8 blocks."""
    found = {}
    for name, weight in weights.items():
        found[f"a.b.{name}.weight"], found[f"a.b.{name}.weight_scale_inv"] = quantize_blocks(weight)
    return found


def fill(layer, sources, together=1):
    """Load `sources` by chunks of rows, the last ones first, scales before everything."""
    inner, outer = nn.Module(), nn.Module()
    inner.layer, outer.b = layer, inner
    if not isinstance(layer, Linear):  # several layers, each next to its parts in the checkpoint
        outer.b = layer
    targets = list(weight_targets(outer, "a."))
    assert {name for name, _ in targets} == set(sources)
    for name, target in sorted(targets, key=lambda entry: not entry[0].endswith("scale_inv")):
        assert target.shape == sources[name].shape
        step = rows_together([target]) * together
        for start in reversed(range(0, len(sources[name]), step)):
            target.write(start, sources[name][start : start + step])
    finish_loading(outer)
    return layer


def random_weights(parts, columns):
    return {name: torch.randn(rows, columns) / columns**0.5 for name, rows in parts.items()}


def formula(x: Tensor, weights):
    """What the kernels compute, in float64: both operands rounded to FP8, sums exact."""
    numbers, scales = ops.fp8_quantize(x)
    wide = scales[:, : len(x)].T.repeat_interleave(128, 1)[:, : x.shape[1]]
    rounded = numbers.double() * wide
    parts = [dequantize_blocks(*quantize_blocks(weight)) for weight in weights.values()]
    return rounded @ torch.cat(parts).double().T


@every_fusion
@pytest.mark.parametrize("rows", [0, 1, 7, 130])
def test_fused_parts_give_what_each_gives_alone(parts, columns, rows):
    weights = random_weights(parts, columns)
    x = torch.randn(rows, columns).bfloat16()
    fused = make_linear(columns, parts, False, options(stored=stored(*parts)))
    assert type(fused) is Fp8Linear
    product = fill(fused, blocks_of(weights))(x)
    assert product.shape == (rows, sum(parts.values())) and product.is_contiguous()
    alone = []
    for name, weight in weights.items():
        layer = make_linear(columns, {name: len(weight)}, False, options(stored=stored(name)))
        alone.append(fill(layer, blocks_of({name: weight}))(x))
    # Sums of other lengths are added up in another order.
    torch.testing.assert_close(product, torch.cat(alone, dim=1), rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(product.double(), formula(x, weights), rtol=1e-2, atol=1e-3)


@every_fusion
@pytest.mark.parametrize("together", [1, 2])
def test_quantising_while_loading_gives_the_stored_blocks(parts, columns, together):
    weights = random_weights(parts, columns)
    ready = make_linear(columns, parts, False, options(stored=stored(*parts)))
    fill(ready, blocks_of(weights), 50)
    made = make_linear(columns, parts, False, options("fp8"))
    fill(made, {f"a.b.{name}.weight": weight for name, weight in weights.items()}, together)
    assert torch.equal(made.weight.view(torch.uint8), ready.weight.view(torch.uint8))
    assert torch.equal(made.scale, ready.scale)


def test_parts_of_both_forms_are_quantised_where_that_is_wanted():
    parts, columns = FUSED[0]
    weights = random_weights(parts, columns)
    layer = make_linear(columns, parts, False, options("fp8", stored=stored("k_proj")))
    sources = {f"a.b.{name}.weight": weight for name, weight in weights.items()}
    fill(layer, sources | blocks_of({"k_proj": weights["k_proj"]}))
    ready = make_linear(columns, parts, False, options(stored=stored(*parts)))
    fill(ready, blocks_of(weights))
    assert torch.equal(layer.weight.view(torch.uint8), ready.weight.view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@every_fusion
def test_without_products_blocks_become_plain_weights(parts, columns, dtype):
    weights = random_weights(parts, columns)
    converted = list(parts)[1:]  # the first part is a float in the checkpoint
    layer = make_linear(
        columns, parts, False, options(dtype=dtype, products=False, stored=stored(*converted))
    )
    assert isinstance(layer, PlainLinear)
    sources = {f"a.b.{name}.weight": weight for name, weight in weights.items()}
    fill(layer, sources | blocks_of({name: weights[name] for name in converted}))
    expected = [
        dequantize_blocks(*quantize_blocks(weight)) if name in converted else weight
        for name, weight in weights.items()
    ]
    assert torch.equal(layer.weight, torch.cat(expected).to(getattr(torch, dtype)))


def test_a_bias_is_added():
    parts, columns = FUSED[2]
    weights = random_weights(parts, columns)
    sources = blocks_of(weights)
    biases = {f"a.b.{name}.bias": torch.randn(rows).bfloat16() for name, rows in parts.items()}
    with_bias = make_linear(columns, parts, True, options(stored=stored(*parts)))
    without = make_linear(columns, parts, False, options(stored=stored(*parts)))
    fill(with_bias, sources | biases), fill(without, sources)
    x = torch.randn(3, columns).bfloat16()
    assert torch.equal(with_bias(x), without(x) + torch.cat(list(biases.values())))


@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("inner", [256, 160])
def test_gated_layers_compute_what_their_products_do(act, inner):
    hidden = 128
    names = ("gate_proj", "up_proj", "down_proj")
    layer = GatedMLP(hidden, inner, act, False, options(stored=stored(*names)))
    weights = random_weights({"gate_proj": inner, "up_proj": inner}, hidden)
    fill(layer, blocks_of(weights) | blocks_of(random_weights({"down_proj": hidden}, inner)))
    norm = RMSNorm(hidden, 1e-6, options())
    norm.weight.data.fill_(1)
    residual = torch.randn(5, hidden).bfloat16()
    x = norm(residual)
    whole = layer.down_proj(layer.activation(layer.gate_up_proj(x)))
    added = layer(norm, residual.clone(), None)
    # The activation is rounded to bfloat16 or not before it becomes e4m3.
    assert (added - whole).float().norm() < 0.05 * whole.float().norm()
    assert layer.down_proj.takes_gate(layer.activation) == (act == "silu" and inner == 256)


@pytest.mark.parametrize("with_pending", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_are_quantised_as_they_come_where_there_is_a_kernel(
    monkeypatch, with_pending, offset
):
    columns, rows = 256, 128
    has_kernel = ops.has_kernel
    monkeypatch.setattr(
        ops, "has_kernel", lambda name, kind: name == "norm_fp8" or has_kernel(name, kind)
    )
    ops.allow_reference_ops(True)
    layer = make_linear(columns, {"x": rows}, False, options(stored=stored("x")))
    fill(layer, blocks_of(random_weights({"x": rows}, columns)))
    norm = RMSNorm(columns, 1e-6, options(), offset)
    norm.weight.data.uniform_(0.5 - offset, 1.5 - offset)
    residual = torch.randn(5, columns).bfloat16()
    pending = torch.randn(5, columns).bfloat16() if with_pending else None
    sums = residual if pending is None else residual + pending
    given = residual.clone()
    fused = layer.normed(norm, given, pending)
    ops.allow_reference_ops(False)
    assert torch.equal(given, sums)
    apart = layer(norm(sums))
    assert (fused - apart).float().norm() < 0.05 * apart.float().norm()
    assert not torch.equal(fused, apart)  # the norm is not rounded in between


def test_memory_is_a_byte_a_weight_and_the_scales():
    layer = make_linear(1024, {"x": 384, "y": 640}, False, options("fp8"))
    assert sum(parameter.nbytes for parameter in layer.parameters()) == 1024 * 1024 + 64 * 4


KIND_TABLE = [
    # quantization, dtype, products, stored -> kind
    ("none", "bfloat16", True, (), PlainLinear),
    ("none", "bfloat16", True, ("x", "y"), Fp8Linear),
    ("none", "bfloat16", True, ("x",), PlainLinear),
    ("none", "bfloat16", False, ("x", "y"), PlainLinear),
    ("none", "float16", True, ("x", "y"), PlainLinear),
    ("none", "float32", True, ("x", "y"), PlainLinear),
    ("fp8", "bfloat16", True, (), Fp8Linear),
    ("fp8", "bfloat16", True, ("x", "y"), Fp8Linear),
    ("fp8", "bfloat16", True, ("y",), Fp8Linear),
    ("int8", "bfloat16", True, (), Int8Linear),
    ("int8", "float32", False, (), Int8Linear),
]


@pytest.mark.parametrize(("quantization", "dtype", "products", "names", "kind"), KIND_TABLE)
def test_one_kind_takes_each_case(quantization, dtype, products, names, kind):
    given = options(quantization, dtype, products, stored(*names))
    assert type(make_linear(128, {"x": 128, "y": 128}, False, given)) is kind


@pytest.mark.parametrize(
    ("quantization", "dtype", "products", "names"),
    [
        ("fp8", "bfloat16", False, ()),
        ("fp8", "float32", True, ()),
        ("int8", "bfloat16", True, ("x",)),
        ("int2", "bfloat16", True, ()),
    ],
)
def test_what_no_kind_takes_is_an_error_with_the_details(quantization, dtype, products, names):
    given = options("none", dtype, products, stored(*names))
    vars(given.settings).update(quantization=quantization)  # a setting cannot be int2
    form = "float and fp8_block" if names else "float"
    message = (
        f"device cpu, weights stored as {form} for activations of torch.{dtype}, "
        f"quantization '{quantization}'; none of {', '.join(KINDS)} does"
    )
    with pytest.raises(ValueError, match=message):
        make_linear(128, {"x": 128, "y": 128}, False, given)


def test_two_kinds_for_one_case_are_an_error(monkeypatch):
    monkeypatch.setitem(KINDS, "other", LinearKind("nowhere:Nothing", lambda request: True))
    with pytest.raises(ValueError, match="plain and other all do"):
        make_linear(128, {"x": 128}, False, options())


def test_exceptions_from_the_options():
    given = options("fp8", stored=stored("x"))
    assert type(make_linear(128, {"x": 128}, False, given.dequantized())) is PlainLinear
    assert type(make_linear(128, {"y": 128}, False, given.unquantized())) is PlainLinear
    assert type(make_linear(128, {"x": 128}, False, given.unquantized())) is Fp8Linear

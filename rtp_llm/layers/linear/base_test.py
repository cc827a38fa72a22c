# SPDX-License-Identifier: Apache-2.0
"""Tests of linear layers: names and places of their parts, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import (
    LayerOptions,
    finish_loading,
    make_linear,
    shorten_lookups,
    weight_targets,
)

PARTS = {"q_proj": 30, "k_proj": 10, "v_proj": 10}
ROWS = list(PARTS.values())
WEIGHT = torch.randn(50, 24, generator=torch.Generator().manual_seed(1))
BIAS = torch.arange(50.0)


def options(quantization="none"):
    settings = ModelSettings(dtype="float32", quantization=quantization)
    return LayerOptions(settings, torch.device("cpu"))


def fill(module, sources):
    """Load `sources` (name -> tensor) three rows at a time, last rows first."""
    for name, target in weight_targets(module):
        rows = sources[name]
        assert target.shape == rows.shape
        for start in reversed(range(0, len(rows), 3)):
            target.write(start, rows[start : start + 3])
    finish_loading(module)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_parts_stand_beside_the_layer_and_below_each_other(quantization):
    attention = nn.Module()
    attention.qkv_proj = make_linear(24, PARTS, True, options(quantization))
    model = nn.Module()
    model.layers = nn.ModuleList([attention])
    sources = {}
    for part, weight, bias in zip(PARTS, WEIGHT.split(ROWS), BIAS.split(ROWS), strict=True):
        sources |= {f"layers.0.{part}.weight": weight, f"layers.0.{part}.bias": bias}
    assert [name for name, _ in weight_targets(model)] == list(sources)
    fill(model, sources)
    x = torch.randn(3, 24)
    exact = x @ WEIGHT.T + BIAS
    tolerance = 1e-5 if quantization == "none" else 0.02
    assert (attention.qkv_proj(x) - exact).abs().max() < tolerance * exact.abs().max()


def test_a_layer_at_the_top_has_no_path_before_its_parts():
    model = nn.Module()
    model.lm_head = make_linear(24, {"lm_head": 50}, False, options())
    assert [name for name, _ in weight_targets(model)] == ["lm_head.weight"]


def test_rows_can_be_read_straight_into_a_plain_weight_only():
    plain, quantised = (make_linear(24, PARTS, False, options(kind)) for kind in ("none", "int8"))
    _, (_, k_target), _ = weight_targets(plain)
    memory = k_target.destination(2, 5)
    assert memory.data_ptr() == plain.weight[32].data_ptr()
    assert memory.shape == (3, 24)
    assert all(target.destination(0, 1) is None for _, target in weight_targets(quantised))


def test_an_unknown_quantisation_lists_the_known_ones():
    given = options("none")
    vars(given.settings).update(quantization="int2")  # which a setting cannot be
    with pytest.raises(ValueError, match=r"'int2'; none of plain, .*, tiled_groups does"):
        make_linear(8, {"x": 8}, False, given)


def test_int8_weights_take_a_quarter_of_the_memory():
    layer = make_linear(256, {"x": 512}, False, options("int8"))
    fill(layer, {"x.weight": torch.randn(512, 256)})
    bytes_kept = sum(parameter.nbytes for parameter in layer.parameters())
    assert bytes_kept == 512 * 256 + 512 * 4 * 4  # numbers, and a scale for every 64 columns


def test_int4_weights_take_an_eighth_of_the_memory():
    layer = make_linear(256, {"x": 512}, False, options("int4"))
    fill(layer, {"x.weight": torch.randn(512, 256)})
    bytes_kept = sum(parameter.nbytes for parameter in layer.parameters())
    assert (
        bytes_kept == 512 * 128 + 512 * 2 * 5
    )  # numbers; a scale and a zero point for 128 columns
    with pytest.raises(ValueError, match="4-bit weights of 7 columns"):
        make_linear(7, {"x": 8}, False, options("int4"))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_weight_that_cannot_be_rounded_is_an_error(value):
    layer = make_linear(24, {"x": 2}, False, options("int8"))
    weight = torch.ones(2, 24)
    weight[1, 5] = value
    with pytest.raises(ValueError, match="not finite"):
        fill(layer, {"x.weight": weight})


def test_a_weight_can_be_replaced_after_the_lookups_were_shortened():
    layer = make_linear(24, {"x": 4}, False, options())
    fill(layer, {"x.weight": torch.ones(4, 24)})
    shorten_lookups(layer)
    x = torch.ones(1, 24)
    assert layer(x).tolist() == [[24.0] * 4]
    layer.weight = nn.Parameter(torch.zeros(4, 24), requires_grad=False)
    assert layer(x).tolist() == [[0.0] * 4]
    assert len(list(layer.parameters())) == 1

# SPDX-License-Identifier: Apache-2.0
"""Weights of experts in one tensor: both formats, from floats and from FP8 blocks."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions, NotLocal, rows_together, weight_targets
from rtp_llm.layers.weights.fp8_formats import Fp8Block
from rtp_llm.layers.weights.stacked import StackedLinearWeights, weight_format
from rtp_llm.quantization.fp8 import dequantize_blocks, padded, quantize_blocks

PARTS = {"gate_proj": 160, "up_proj": 160}
COLUMNS, EXPERTS = 200, 3
LOCAL = (2, 0, 2)  # one expert twice, one not local


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def options(quantization="none", products=True, stored=()):
    formats = {f"mlp.experts.{expert}.{part}": Fp8Block() for expert, part in stored}
    return LayerOptions(
        ModelSettings(dtype="bfloat16", quantization=quantization),
        torch.device("cpu"),
        formats=formats,
        fp8_products=products,
        path="mlp.experts.",
    )


def everything():
    return {(expert, part) for expert in range(EXPERTS) for part in PARTS}


def stack(given):
    return StackedLinearWeights(COLUMNS, PARTS, EXPERTS, given, LOCAL)


def fill(layer, weights, stored):
    """Load float `weights` by (expert, part), those of `stored` in blocks, scales first."""
    sources = {}
    for (expert, part), weight in weights.items():
        name = f"mlp.experts.{expert}.{part}.weight"
        if (expert, part) in stored:
            sources[name], sources[f"{name}_scale_inv"] = quantize_blocks(weight)
        else:
            sources[name] = weight
    targets = list(weight_targets(layer, "mlp.experts.gate_up."))
    assert {name for name, _ in targets} == set(sources)
    for name, target in sorted(targets, key=lambda entry: not entry[0].endswith("scale_inv")):
        assert target.shape == sources[name].shape
        assert isinstance(target, NotLocal) == (".1." in name)
        if not isinstance(target, NotLocal):
            step = 50 * rows_together([target])
            for start in range(0, len(sources[name]), step):
                target.write(start, sources[name][start : start + step])
    return layer


def random_weights():
    return {key: torch.randn(PARTS[key[1]], COLUMNS) for key in sorted(everything())}


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_blocks_lie_by_slot_and_are_filled_up_with_zeros(quantization):
    stored = everything() if quantization == "none" else {(0, "up_proj"), (1, "gate_proj")}
    weights = random_weights()
    layer = fill(stack(options(quantization, stored=stored)), weights, stored)
    rows, columns = padded(160), padded(COLUMNS)
    assert layer.weight.shape == (3, 2 * rows, columns)
    assert layer.scale.shape == (3, 2 * rows // 128, columns // 128)
    for slot, expert in enumerate(LOCAL):
        expected = torch.zeros(2 * rows, columns)
        for number, part in enumerate(PARTS):
            wide = dequantize_blocks(*quantize_blocks(weights[expert, part]))
            expected[number * rows : number * rows + 160, :COLUMNS] = wide
        assert torch.equal(dequantize_blocks(layer.weight[slot], layer.scale[slot]), expected)


@pytest.mark.parametrize("stored", [set(), everything(), {(0, "up_proj"), (2, "gate_proj")}])
def test_without_products_all_become_floats(stored):
    weights = random_weights()
    layer = fill(stack(options(products=False, stored=stored)), weights, stored)
    assert layer.scale is None
    for slot, expert in enumerate(LOCAL):
        parts = [
            dequantize_blocks(*quantize_blocks(weights[expert, part]))
            if (expert, part) in stored
            else weights[expert, part]
            for part in PARTS
        ]
        assert torch.equal(layer.weight[slot], torch.cat(parts).bfloat16())


def test_the_form_follows_the_first_expert_and_the_device():
    first = {(0, part) for part in PARTS}
    assert weight_format(options(stored=first), PARTS) == "fp8"
    assert weight_format(options(stored={(0, "up_proj")}), PARTS) == "plain"
    assert weight_format(options(products=False, stored=first), PARTS) == "plain"
    assert weight_format(options("fp8"), PARTS) == "fp8"
    assert weight_format(options("int8"), PARTS) == "int8"

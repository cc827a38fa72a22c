# SPDX-License-Identifier: Apache-2.0
"""Linear layers of which one tensor of the checkpoint holds several parts, group by group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import (
    Interleaved,
    LayerOptions,
    finish_loading,
    make_linear,
    rows_together,
    weight_targets,
)
from rtp_llm.layers.weights.fp8_formats import Fp8Block
from rtp_llm.quantization.fp8 import dequantize_blocks, quantize_blocks

CPU = torch.device("cpu")
COLUMNS = 24
# Qwen3-Next's attention and delta net: unequal rows, another tensor between, several tensors.
GATED = (
    {"query": 12, "k_proj": 5, "v_proj": 5, "gate": 12},
    [Interleaved("q_proj", ("query", "gate"), 4)],
)
QKVZ = (
    {"q": 6, "k": 6, "v": 20, "z": 20, "b": 4, "a": 4},
    [
        Interleaved("in_proj_qkvz", ("q", "k", "v", "z"), 2),
        Interleaved("in_proj_ba", ("b", "a"), 2),
    ],
)
every_layer = pytest.mark.parametrize(("parts", "interleaved"), [GATED, QKVZ])


def options(quantization="none", dtype="float32", stored=(), products=True):
    settings = ModelSettings(dtype=dtype, quantization=quantization)
    formats = dict.fromkeys(stored, Fp8Block())
    return LayerOptions(settings, CPU, formats=formats, fp8_products=products)


def checkpoint(weights, interleaved):
    """`weights` (part -> rows) as the checkpoint has them: group by group, all rows of a group."""
    found = dict(weights)
    for each in interleaved:
        groups = [found.pop(part).unflatten(0, (each.groups, -1)) for part in each.parts]
        found[each.tensor] = torch.cat(groups, dim=1).flatten(0, 1)
    return found


def fill(layer, sources, step):
    """Load `sources` by chunks of about `step` rows, the last ones first, scales before all."""
    model = nn.Module()
    model.layer = layer
    targets = list(weight_targets(model))
    assert sorted(name for name, _ in targets) == sorted(sources)
    for name, target in sorted(targets, key=lambda entry: not entry[0].endswith("scale_inv")):
        rows, together = sources[name], rows_together([target])
        assert target.shape == rows.shape
        chunks = max(1, step // together) * together
        for start in reversed(range(0, len(rows), chunks)):
            chunk = rows[start : start + chunks]
            memory = target.destination(start, start + len(chunk))
            if memory is None or step % 2:  # a loader may use either
                target.write(start, chunk)
            else:
                memory.copy_(chunk)
    finish_loading(layer)
    return layer


def random(parts, columns=COLUMNS):
    torch.manual_seed(0)
    return {part: torch.randn(rows, columns) / columns**0.5 for part, rows in parts.items()}


@every_layer
@pytest.mark.parametrize("quantization", ["none", "int8", "w8a8_int8"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_parts_lie_together_whatever_pieces_come(parts, interleaved, quantization, step):
    weights = random(parts)
    bias = {part: torch.randn(rows) for part, rows in parts.items()}
    given = {f"{name}.weight": rows for name, rows in checkpoint(weights, interleaved).items()}
    given |= {f"{name}.bias": rows for name, rows in checkpoint(bias, interleaved).items()}
    layer = make_linear(COLUMNS, parts, True, options(quantization), interleaved)
    fill(layer, given, step)
    alone = make_linear(COLUMNS, parts, True, options(quantization))
    fill(alone, {f"{part}.weight": rows for part, rows in weights.items()}
         | {f"{part}.bias": rows for part, rows in bias.items()}, 100)  # fmt: skip
    for mine, theirs in zip(layer.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine, theirs)


WHOLE = {"query": 512, "k_proj": 128, "gate": 256}
HEADS = [Interleaved("q_proj", ("query", "gate"), 2)]


@pytest.mark.parametrize("step", [1, 128, 200, 384, 1000])
@pytest.mark.parametrize("form", ["as stored", "quantised", "dequantised"])
def test_whole_blocks_of_fp8_are_dealt_out(form, step):
    weights = random(WHOLE, 256)
    given = {}
    for name, rows in checkpoint(weights, HEADS).items():
        given[f"{name}.weight"], given[f"{name}.weight_scale_inv"] = quantize_blocks(rows)
    stored = options(dtype="bfloat16", stored=("q_proj", "k_proj"), products=form == "as stored")
    if form == "quantised":
        stored = options("fp8", "bfloat16")
        given = {f"{name}.weight": rows for name, rows in checkpoint(weights, HEADS).items()}
    layer = fill(make_linear(256, WHOLE, False, stored, HEADS), given, step)
    numbers, scales = quantize_blocks(torch.cat(list(weights.values())))
    if form == "dequantised":
        assert torch.equal(layer.weight, dequantize_blocks(numbers, scales).bfloat16())
    else:
        assert torch.equal(layer.weight.view(torch.uint8), numbers.view(torch.uint8))
        assert torch.equal(layer.scale, scales)


@pytest.mark.parametrize(
    "given",
    [options(stored=("q_proj", "k_proj")), options("fp8", "bfloat16")],
    ids=["stored", "quantised"],
)
def test_blocks_that_several_parts_would_share_are_refused(given):
    parts = {"query": 192, "k_proj": 128, "gate": 192}
    with pytest.raises(ValueError, match="q_proj has 64 rows of query at a time: blocks of 128"):
        make_linear(128, parts, False, given, [Interleaved("q_proj", ("query", "gate"), 3)])


def test_rows_of_one_part_can_be_read_straight_into_a_plain_weight():
    parts, interleaved = GATED
    layer = make_linear(COLUMNS, parts, False, options(), interleaved)
    target = dict(layer.checkpoint_targets("x."))["q_proj.weight"]
    memory = target.destination(7, 9)  # of head 1: rows 1 and 2 of its query
    assert memory.data_ptr() == layer.weight[4].data_ptr() and memory.shape == (2, COLUMNS)
    assert target.destination(9, 12).data_ptr() == layer.weight[25].data_ptr()
    assert target.destination(8, 10) is None


@pytest.mark.parametrize(
    ("interleaved", "message"),
    [
        ([Interleaved("t", ("a", "c"), 2)], r"should be parts of \['a', 'b'\]"),
        ([Interleaved("t", ("a",), 2), Interleaved("u", ("a", "b"), 2)], "each in one tensor"),
        ([Interleaved("t", ("a", "b"), 3)], "a has 4 rows, not whole ones of 3"),
    ],
)
def test_parts_that_do_not_fit_are_errors(interleaved, message):
    with pytest.raises(ValueError, match=message):
        make_linear(COLUMNS, {"a": 4, "b": 6}, False, options(), interleaved)

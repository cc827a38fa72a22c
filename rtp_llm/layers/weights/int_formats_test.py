# SPDX-License-Identifier: Apache-2.0
"""GPTQ, AWQ and pack-quantized weights equal those that their packages dequantise, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.layers import (
    DivisionError,
    LayerOptions,
    Shard,
    ShardTarget,
    finish_loading,
    make_linear,
    weight_targets,
)
from rtp_llm.layers.weights.compressed_tensors import read_compressed_tensors
from rtp_llm.layers.weights.int_config import read_auto_round, read_awq, read_gptq
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.layers.weights.int_targets import GroupedWeight
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards
from rtp_llm.layers.weights.stored_config import UnsupportedFormatError
from rtp_llm.layers.weights.targets import WeightTarget, loads_last, rows_together
from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, unpack_bytes
from rtp_llm.testing.fake_torch import FakeTorch
from rtp_llm.testing.models.int_checkpoints import tensors_of

ROWS, COLUMNS = 32, 64


def stored_weight(stored: IntGroups, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a random weight as `stored`, and what its package makes of them, float16."""
    generator = torch.Generator().manual_seed(seed)
    top = 1 << stored.bits

    def random(*shape: int) -> Tensor:
        return torch.randint(0, top, shape, generator=generator)

    groups = stored.groups(COLUMNS)
    codes, zeros = random(ROWS, COLUMNS), random(ROWS, groups)
    scales = (torch.rand(ROWS, groups, generator=generator) / 16).half()
    group_of = groups_in_order(COLUMNS, stored.group)
    if stored.ordered:
        group_of = group_of[torch.randperm(COLUMNS, generator=generator)]
    if isinstance(stored, PackQuantized) and stored.symmetric:
        zeros = torch.full_like(zeros, top // 2)
    # Their formula: float16 scales, times float16 differences of integers.
    exact = scales[:, group_of] * (codes - zeros[:, group_of]).half()
    return tensors_of(stored, codes, zeros, scales, group_of), exact


def load(targets: dict[str, WeightTarget], sources: dict[str, Tensor]) -> None:
    """Write `sources` as the loader does: scales first, and a few rows at a time."""
    for last in (False, True):
        for name, given in targets.items():
            tensor, target = sources[name], given
            assert given.shape == tensor.shape, name
            if isinstance(given, ShardTarget):
                target = given.target
                for axis, shard in enumerate((given.rows, given.columns)):
                    if shard is not None:
                        ((start, end),) = shard.ranges
                        tensor = tensor.narrow(axis, start, end - start)
            if loads_last([target]) is last:
                step = 3 * rows_together([target])
                for start in range(0, len(tensor), step):
                    target.write(start, tensor[start : start + step])


FORMATS = [
    Gptq(group=16),
    Gptq(group=16, zero_added=0),
    Gptq(group=16, ordered=True),
    Gptq(group=0),
    Gptq(bits=8, group=32),
    Gptq(bits=8, group=32, zero_added=0, ordered=True),
    Awq(group=16),
    Awq(group=0),
    PackQuantized(group=16),
    PackQuantized(group=16, symmetric=False),
    PackQuantized(group=0, symmetric=False),
    PackQuantized(group=16, ordered=True),
    PackQuantized(bits=8, group=32, symmetric=False),
]


def layer_of(
    stored: IntGroups,
    parts: dict[str, int],
    columns: int = COLUMNS,
    shards: LinearShards = WHOLE,
    interleaved: tuple[Interleaved, ...] = (),
    keeps: bool = False,
) -> nn.Module:
    options = LayerOptions(
        ModelSettings(dtype="float16"),
        torch.device("cpu"),
        formats=dict.fromkeys(("q", "k", "both"), stored),
    )
    outer = nn.Module()
    if not keeps:
        options = options.dequantized()
    outer.layer = make_linear(columns, parts, False, options, interleaved, shards)
    return outer


@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_floats_equal_those_of_the_packages(stored: IntGroups) -> None:
    tensors, exact = stored_weight(stored)
    outer = layer_of(stored, {"q": ROWS})
    load(dict(weight_targets(outer)), {f"q.{name}": each for name, each in tensors.items()})
    assert torch.equal(outer.layer.weight, exact)


@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_weights_kept_as_integers_stand_for_the_same(stored: IntGroups) -> None:
    tensors, exact = stored_weight(stored)
    shape = ROWS, stored.groups(COLUMNS)
    weight = torch.zeros(ROWS, COLUMNS * stored.bits // 8, dtype=torch.uint8)
    scales, zeros = torch.zeros(shape), torch.zeros(shape, dtype=torch.uint8)
    order = torch.zeros(COLUMNS, dtype=torch.int32) if stored.ordered else None
    memory = GroupedWeight(weight, scales, zeros, stored.bits, stored.group, order)
    load(dict(stored.stored_targets(memory)), tensors)
    codes = unpack_bytes(weight, stored.bits)
    group_of = groups_in_order(COLUMNS, stored.group) if order is None else order
    assert torch.equal(dequantize(codes, scales, zeros, group_of).half(), exact)


@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_a_layer_that_keeps_integers_multiplies_what_they_stand_for(stored: IntGroups) -> None:
    """x of whole numbers is quantised exactly: only float16 weights differ from what they are."""
    floats = layer_of(stored, {"q": ROWS, "k": ROWS})
    kept = layer_of(stored, {"q": ROWS, "k": ROWS}, keeps=True)
    sources = {}
    for seed, part in enumerate(("q", "k")):
        tensors, _ = stored_weight(stored, seed)
        sources |= {f"{part}.{name}": each for name, each in tensors.items()}
    for outer in (floats, kept):
        load(dict(weight_targets(outer)), sources)
        finish_loading(outer)
    x = torch.randint(-127, 128, (3, COLUMNS), generator=torch.Generator().manual_seed(1)).half()
    x[x.abs() > 120] = 127
    x[:, ::4] = 127
    torch.testing.assert_close(kept.layer(x), floats.layer(x), rtol=2e-3, atol=1.0)


def test_parts_in_one_order_are_one_product() -> None:
    stored = Gptq(group=32, ordered=True)
    tensors, exact = stored_weight(stored)
    for other, products in ((0, 1), (1, 2)):
        changed, changed_exact = stored_weight(stored, other)
        outer = layer_of(stored, {"q": ROWS, "k": ROWS}, keeps=True)
        sources = {f"q.{name}": each for name, each in tensors.items()}
        sources |= {f"k.{name}": each for name, each in changed.items()}
        load(dict(weight_targets(outer)), sources)
        finish_loading(outer)
        assert len(outer.layer.products) == products
        x = torch.full((1, COLUMNS), 127.0).half()
        both = torch.cat([exact, changed_exact]).sum(dim=1)[None] * 127
        torch.testing.assert_close(outer.layer(x), both.half(), rtol=2e-3, atol=1.0)


def test_parts_may_differ_in_bits_and_groups() -> None:
    formats = {"q": Gptq(group=32), "k": Gptq(bits=8, group=16), "v": Gptq(bits=8, group=16)}
    options = LayerOptions(ModelSettings(dtype="float16"), torch.device("cpu"), formats=formats)
    outer = nn.Module()
    outer.layer = make_linear(COLUMNS, dict.fromkeys(formats, ROWS), True, options)
    sources, expected = {}, []
    for part, stored in formats.items():
        tensors, exact = stored_weight(stored)
        sources |= {f"{part}.{name}": each for name, each in tensors.items()}
        sources[f"{part}.bias"] = torch.arange(ROWS).half()
        expected.append(exact.sum(dim=1) * 127 + sources[f"{part}.bias"])
    load(dict(weight_targets(outer)), sources)
    finish_loading(outer)
    assert len(outer.layer.products) == 2
    actual = outer.layer(torch.full((1, COLUMNS), 127.0).half())
    torch.testing.assert_close(actual, torch.cat(expected)[None].half(), rtol=2e-3, atol=1.0)


@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_ranks_have_rows_or_columns(stored: IntGroups) -> None:
    tensors, exact = stored_weight(stored)
    sources = {f"q.{name}": each for name, each in tensors.items()}
    rows, columns = Shard(ROWS, ((16, 32),)), Shard(COLUMNS, ((32, 64),))
    outer = layer_of(stored, {"q": 16}, shards=LinearShards({"q": rows}))
    load(dict(weight_targets(outer)), sources)
    assert torch.equal(outer.layer.weight, exact[16:])
    marker = tensors[stored.marker[0]]
    found = stored.found_with(tuple(marker.shape))
    assert isinstance(found, IntGroups)
    outer = layer_of(found, {"q": ROWS}, 32, LinearShards(columns=columns))
    load(dict(weight_targets(outer)), sources)
    assert torch.equal(outer.layer.weight, exact[:, 32:])
    kept = layer_of(found, {"q": ROWS}, 32, LinearShards(columns=columns), keeps=True)
    load(dict(weight_targets(kept)), sources)
    finish_loading(kept)
    x = torch.full((1, 32), 127.0).half()
    expected = exact[:, 32:].float().sum(dim=1)[None].half() * 127
    torch.testing.assert_close(kept.layer(x), expected, rtol=2e-3, atol=1.0)


@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_parts_that_alternate_in_one_tensor(stored: IntGroups) -> None:
    tensors, exact = stored_weight(stored)
    both = Interleaved("both", ("q", "k"), 2)
    outer = layer_of(stored, {"q": 16, "k": 16}, interleaved=(both,))
    load(dict(weight_targets(outer)), {f"both.{name}": each for name, each in tensors.items()})
    heads = exact.view(2, 2, 8, COLUMNS)
    expected = torch.cat([heads[:, 0].reshape(16, -1), heads[:, 1].reshape(16, -1)])
    assert torch.equal(outer.layer.weight, expected)


def test_groups_and_words_are_not_split_between_ranks() -> None:
    for shards, columns, rows in (
        (LinearShards(columns=Shard(COLUMNS, ((0, 24),))), 24, ROWS),
        (LinearShards({"q": Shard(ROWS, ((0, 12),))}), COLUMNS, 12),
    ):
        with pytest.raises(DivisionError, match=r"q \((rows|columns)\) would be split"):
            layer_of(Gptq(group=16), {"q": rows}, columns, shards)


def test_columns_out_of_order_need_desc_act() -> None:
    tensors, _ = stored_weight(Gptq(group=16, ordered=True))
    outer = layer_of(Gptq(group=16), {"q": ROWS})
    target = dict(weight_targets(outer))["q.g_idx"]
    with pytest.raises(ValueError, match="desc_act is false"):
        target.write(0, tensors["g_idx"])
    outer = layer_of(Gptq(group=16, ordered=True), {"q": ROWS})
    target = dict(weight_targets(outer))["q.g_idx"]
    with pytest.raises(ValueError, match="groups 0 to 4, of 4"):
        target.write(0, torch.tensor([0, 4], dtype=torch.int32))


def test_config_of_gptq() -> None:
    config: dict[str, Any] = {"bits": 4, "group_size": 128, "desc_act": True, "sym": True}
    dynamic = {"-:.*gate": {}, r".*down": {"bits": 8, "group_size": -1}}
    stored = read_gptq({**config, "checkpoint_format": "gptq_v2", "dynamic": dynamic})
    whole = Gptq(4, 128, True, zero_added=0)
    assert stored.format_of("a.up") == whole
    assert stored.format_of("a.gate").name == "float"
    assert stored.format_of("a.down") == replace(whole, bits=8, group=0)
    assert len(stored.formats) == 2
    assert read_gptq(config).format_of("a") == Gptq(4, 128, True, zero_added=1)
    assert whole.found_among(frozenset({"qweight"})) == Gptq(4, 128, zero_added=0, indexed=False)


def test_config_of_awq() -> None:
    config = {"bits": 4, "group_size": 64, "modules_to_not_convert": ["gate"]}
    stored = read_awq(config)
    assert stored.format_of("a.up") == Awq(group=64)
    assert stored.format_of("a.gate").name == "float"


def test_config_of_auto_round() -> None:
    config: dict[str, Any] = {"bits": 4, "group_size": 128, "sym": True, "data_type": "int"}
    extra = {
        "lm_head": {"bits": 16, "data_type": "float"},
        "a.0.down": {"bits": 8, "group_size": 32},
        ".*1.up": {"group_size": -1},
    }
    stored = read_auto_round({**config, "extra_config": extra})
    assert stored.format_of("a.0.up") == Gptq(4, 128, zero_added=1)
    assert stored.format_of("lm_head").name == "float"
    assert stored.format_of("a.0.down") == Gptq(8, 32)
    assert stored.format_of("a.1.up") == Gptq(4, 0)
    stored = read_auto_round({**config, "packing_format": "auto_round:auto_awq"})
    assert stored.format_of("a.0.up") == Awq(group=128)


def packed_config(**weights: Any) -> dict[str, Any]:
    given = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, **weights}
    group = {"targets": ["Linear"], "weights": given, "input_activations": None}
    return {"format": "pack-quantized", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def test_config_of_packed_integers() -> None:
    stored = read_compressed_tensors(packed_config(symmetric=False))
    assert stored.format_of("a.up") == PackQuantized(symmetric=False)
    assert stored.format_of("lm_head").name == "float"
    assert stored.ignores("a.up.weight_shape")
    stored = read_compressed_tensors(packed_config(strategy="channel", num_bits=8, group_size=None))
    assert stored.format_of("a.up") == PackQuantized(8, 0)


@pytest.mark.parametrize(
    ("read", "config", "found"),
    [
        (read_gptq, {"bits": 3}, "GPTQ: integers of 3 bits"),
        (read_gptq, {"bits": 4, "group_size": 0}, "groups of 0 columns"),
        (read_gptq, {"bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (read_gptq, {"bits": 4, "dynamic": {"(": {}}}, "dynamic has the pattern"),
        (read_auto_round, {"bits": 4, "packing_format": "auto_round:fp8"}, "'auto_round:fp8'"),
        (read_auto_round, {"bits": 4, "data_type": "mx_fp"}, "AutoRound of data_type 'mx_fp'"),
        (read_auto_round, {"bits": 2, "group_size": 32}, "AutoRound: integers of 2 bits"),
        (read_awq, {"bits": 4, "version": "gemv"}, "AWQ of version 'gemv'"),
        (read_awq, {"bits": 4, "zero_point": False}, "AWQ without zero points"),
        (read_compressed_tensors, packed_config(type="float"), "weights of type 'float'"),
        (read_compressed_tensors, packed_config(strategy="block"), "strategy 'block'"),
        (read_compressed_tensors, packed_config(num_bits=2), "integers of 2 bits"),
    ],
)
def test_others_are_refused(
    read: Callable[[dict[str, Any]], object], config: dict[str, Any], found: str
) -> None:
    with pytest.raises(UnsupportedFormatError, match=found):
        read(config)


@pytest.mark.parametrize("stored", [Gptq(), Gptq(bits=8), Awq(), PackQuantized(bits=8)])
def test_gpus_take_weights_that_fill_tiles(
    stored: IntGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = CudaDevice(FakeTorch(cuda=1), {})
    monkeypatch.setattr(ops, "has_kernel", lambda name, kind: kind == "cpu")
    for rows, columns in ((64, 256), (48, 256), (64, 576)):
        shape = stored.shapes(rows, columns)[stored.marker[0]]
        assert stored.rows_and_columns(shape) == (rows, columns)
        assert stored.fits(rows, columns, gpu) == ((rows, columns) == (64, 256))
        assert stored.fits(rows, columns, CpuDevice()), "which multiplies groups of all sizes"

# SPDX-License-Identifier: Apache-2.0
"""FP8 linear layers with scales of channels: shards, interleaved parts, floats, the product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import (
    LayerOptions,
    RMSNorm,
    Shard,
    ShardTarget,
    loads_last,
    make_linear,
    weight_targets,
)
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.base import Linear, PlainLinear
from rtp_llm.layers.linear.fp8_channel import Fp8ChannelLinear
from rtp_llm.layers.weights.fp8_formats import Fp8Block, Fp8Channel, Fp8Tensor
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.layers.weights.stored_format import FormatError, StoredFormat
from rtp_llm.quantization.fp8_channels import dequantize_channels, quantize_channels

CPU = torch.device("cpu")
COLUMNS = 48
PARTS = {"q": 32, "k": 16}
CHANNEL, TENSOR = Fp8Channel("weight_scale"), Fp8Tensor("weight_scale")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def options(
    formats: Mapping[str, StoredFormat], products: bool = True, quantization: str = "none"
) -> LayerOptions:
    settings = ModelSettings(dtype="bfloat16", quantization=quantization)
    return LayerOptions(settings, CPU, formats=formats, fp8_products=products)


def stored(weight: Tensor, format_: StoredFormat) -> dict[str, Tensor]:
    """The tensors of a weight, by their suffixes."""
    if format_ is CHANNEL:
        numbers, scales = quantize_channels(weight)
    else:
        scales = weight.abs().max().view(1) / 448
        numbers = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale": scales}


def fill(layer: Linear, sources: Mapping[str, Tensor]) -> None:
    outer = nn.Module()
    outer.layer = layer
    for name, target in sorted(weight_targets(outer), key=lambda each: loads_last([each[1]])):
        tensor = sources[name]
        assert target.shape == tensor.shape, name
        if isinstance(target, ShardTarget):
            for axis, shard in enumerate((target.rows, target.columns)):
                if shard is not None:
                    slices = [tensor.narrow(axis, s, e - s) for s, e in shard.ranges]
                    tensor = torch.cat([each.view(torch.uint8) for each in slices], dim=axis).view(
                        tensor.dtype
                    )
            target = target.target
        for start in reversed(range(0, len(tensor), 7)):
            target.write(start, tensor[start : start + 7])


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("formats", [(CHANNEL, CHANNEL), (TENSOR, TENSOR), (TENSOR, CHANNEL)])
def test_fused_parts_keep_their_values(formats: Any, products: bool) -> None:
    by_part = dict(zip(PARTS, formats, strict=True))
    layer = make_linear(COLUMNS, PARTS, False, options(by_part, products))
    assert type(layer) is (Fp8ChannelLinear if products else PlainLinear)
    sources, exact = {}, []
    for part, rows in PARTS.items():
        tensors = stored(torch.randn(rows, COLUMNS) * rows, by_part[part])
        sources |= {f"{part}.{suffix}": tensor for suffix, tensor in tensors.items()}
        exact.append(tensors["weight"].float() * tensors["weight_scale"])
    fill(layer, sources)
    if isinstance(layer, Fp8ChannelLinear):
        assert torch.equal(dequantize_channels(layer.weight, layer.scale), torch.cat(exact))
    else:
        assert torch.equal(layer.weight, torch.cat(exact).bfloat16())


@pytest.mark.parametrize("format_", [CHANNEL, TENSOR], ids=["channel", "tensor"])
@pytest.mark.parametrize("products", [True, False])
def test_ranks_have_shards_of_rows_and_columns(format_: StoredFormat, products: bool) -> None:
    tensors = stored(torch.randn(32, COLUMNS), format_)
    sources = {f"q.{suffix}": tensor for suffix, tensor in tensors.items()}
    exact = tensors["weight"].float() * tensors["weight_scale"]
    rows, columns = Shard(32, ((8, 16), (24, 32))), Shard(COLUMNS, ((16, 48),))
    for shards, size, expected in (
        (LinearShards({"q": rows}), (COLUMNS, 16), torch.cat([exact[8:16], exact[24:]])),
        (LinearShards(columns=columns), (32, 32), exact[:, 16:]),
    ):
        given = options({"q": format_}, products)
        layer = make_linear(size[0], {"q": size[1]}, False, given, shards=shards)
        fill(layer, sources)
        weight = layer.weight
        if isinstance(layer, Fp8ChannelLinear):
            weight = dequantize_channels(layer.weight, layer.scale).bfloat16()
        assert torch.equal(weight, expected.bfloat16())


@pytest.mark.parametrize("format_", [CHANNEL, TENSOR], ids=["channel", "tensor"])
@pytest.mark.parametrize("products", [True, False])
def test_interleaved_parts_share_a_tensor(format_: StoredFormat, products: bool) -> None:
    parts, groups = {"query": 32, "gate": 32}, 4
    tensors = stored(torch.randn(64, COLUMNS), format_)
    layer = make_linear(
        COLUMNS,
        parts,
        False,
        options({"q_proj": format_}, products),
        [Interleaved("q_proj", tuple(parts), groups)],
    )
    fill(layer, {f"q_proj.{suffix}": tensor for suffix, tensor in tensors.items()})
    exact = (tensors["weight"].float() * tensors["weight_scale"]).view(groups, 2, 8, COLUMNS)
    weight = layer.weight
    if isinstance(layer, Fp8ChannelLinear):
        weight = dequantize_channels(layer.weight, layer.scale).bfloat16()
    assert torch.equal(weight, exact.transpose(0, 1).reshape(64, COLUMNS).bfloat16())


def test_the_product_and_its_bias() -> None:
    layer = make_linear(COLUMNS, {"q": 32}, True, options({"q": CHANNEL}))
    tensors = stored(torch.randn(32, COLUMNS) / COLUMNS**0.5, CHANNEL)
    bias = torch.randn(32).bfloat16()
    fill(layer, {f"q.{key}": tensor for key, tensor in tensors.items()} | {"q.bias": bias})
    x = torch.randn(5, 2 * COLUMNS).bfloat16()[:, :COLUMNS]  # rows with a stride
    numbers, scales = ops.fp8_quantize_tokens(x.contiguous())
    exact = numbers.double() * scales @ (tensors["weight"].double() * tensors["weight_scale"]).T
    torch.testing.assert_close(layer(x).double(), exact + bias, rtol=2e-2, atol=2e-2)


def test_formats_that_do_not_go_together_are_refused() -> None:
    for formats in ({"q": CHANNEL}, {"q": CHANNEL, "k": Fp8Block()}):
        with pytest.raises(FormatError, match=r"weights stored as f.* and fp8_channel"):
            make_linear(COLUMNS, PARTS, False, options(formats, quantization="fp8"))


@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_go_through_the_kernels_of_blocks(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_linear(256, {"q": 128}, bias, options({"q": CHANNEL}))
    tensors = stored(torch.randn(128, 256) * torch.logspace(-3, 1, 128)[:, None], CHANNEL)
    sources = {f"q.{key}": tensor for key, tensor in tensors.items()}
    fill(layer, sources | ({"q.bias": torch.randn(128).bfloat16()} if bias else {}))
    calls, multiply = [], ops.fp8_linear
    monkeypatch.setattr(ops, "fp8_linear", lambda *given: calls.append(given) or multiply(*given))
    exact = (tensors["weight"].float() * tensors["weight_scale"]).T
    norm, silu = RMSNorm(256, 1e-6, options({})), GatedActivation("silu")
    norm.weight.data.fill_(1)
    assert layer.takes_gate(silu)
    for rows in (1, 32, 33):
        x, pairs = torch.randn(rows, 256).bfloat16(), torch.randn(rows, 512).bfloat16()
        found = [layer(x), layer.normed(norm, x.clone(), None), layer.add_gated(x, pairs, silu)]
        for y, given in zip(found, (x, norm(x), silu(pairs)), strict=True):
            expected = given.float() @ exact + (0 if layer.bias is None else layer.bias)
            assert (y - expected).norm() < 0.05 * expected.norm()
    assert len(calls) == 6

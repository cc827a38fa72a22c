# SPDX-License-Identifier: Apache-2.0
"""Layers with integers in tiles against floats: a device's kernels, or their references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.layers import LayerOptions
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.int4 import TiledInt4Linear
from rtp_llm.layers.linear.tiled_groups import TiledGroupsLinear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.ops.gemm.int_groups import groups_in_order
from rtp_llm.quantization.int4 import dequantize_rows, quantize_rows
from rtp_llm.testing.models.int_checkpoints import tensors_of
from rtp_llm.testing.operator_checks import DEVICE

NATIVE = ops.has_kernel("tiled_wna16_linear", DEVICE)
ROWS, COLUMNS = 64, 256
SILU = GatedActivation("silu")
FORMATS = [
    Gptq(group=32),
    Gptq(bits=8, group=128),
    Gptq(group=64, ordered=True),
    Gptq(group=16),  # cut into tiles with columns of zeros
    Awq(group=0),
    PackQuantized(group=128),
    PackQuantized(bits=8, group=64, symmetric=False),
]


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


class Pair:
    """A layer with parts q and k, and its float64 weight."""

    def __init__(
        self, stored: IntGroups, rows: int = ROWS, columns: int = COLUMNS, alike: bool = True
    ) -> None:
        self.columns = columns
        options = LayerOptions(
            ModelSettings(dtype="float16"),
            torch.device(DEVICE),
            formats=dict.fromkeys(("q", "k"), stored),
        )
        self.layer = TiledGroupsLinear(columns, {"q": rows, "k": rows}, True, options)
        with torch.device("cpu"):
            self.weight = self.load(stored, rows, columns, alike).to(DEVICE)
        self.layer.finish_loading()

    def load(self, stored: IntGroups, rows: int, columns: int, alike: bool) -> Tensor:
        targets = dict(self.layer.checkpoint_targets("layer"))
        generator = torch.Generator().manual_seed(0)
        order, weights = torch.randperm(columns, generator=generator), []
        for part in ("q", "k"):
            groups = stored.groups(columns)
            codes = torch.randint(1 << stored.bits, (rows, columns), generator=generator)
            zeros = torch.randint(1 << stored.bits, (rows, groups), generator=generator)
            if isinstance(stored, PackQuantized) and stored.symmetric:
                zeros.fill_(1 << (stored.bits - 1))
            scales = (torch.rand(rows, groups, generator=generator) / 2**stored.bits / 16).half()
            group_of = groups_in_order(columns, stored.group)
            group_of = group_of[order] if stored.ordered else group_of
            order = order if alike else order.flip(0)
            weights.append(scales.double()[:, group_of] * (codes - zeros[:, group_of]))
            tensors = tensors_of(stored, codes, zeros, scales, group_of)
            for name, tensor in tensors.items():
                targets[f"{part}.{name}"].write(0, tensor)
            targets[f"{part}.bias"].write(0, torch.ones(rows).half())
        return torch.cat(weights)

    def x(self, rows: int) -> Tensor:
        return torch.randn(rows, self.columns, device=DEVICE).half()

    def product(self, x: Tensor) -> Tensor:
        return x.double() @ self.weight.T + 1


def check(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    error = (actual.double() - expected).norm() / expected.norm()
    assert error < 2e-3, f"relative error {error}"


@pytest.mark.parametrize("stored", FORMATS, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
def test_products(stored: IntGroups, rows: int) -> None:
    pair = Pair(stored)
    assert len(pair.layer.products) == 1
    x = pair.x(rows)
    check(pair.layer(x), pair.product(x))


@pytest.mark.parametrize("stored", [FORMATS[0], FORMATS[2]], ids=str)
def test_what_surrounds_a_product(stored: IntGroups) -> None:
    pair = Pair(stored)
    norm = RMSNorm(
        COLUMNS, 1e-6, LayerOptions(ModelSettings(dtype="float16"), torch.device(DEVICE))
    )
    norm.weight.data.uniform_(0.5, 1.5)
    residual = pair.x(3)
    normed = torch.nn.functional.rms_norm(
        residual.double(), (COLUMNS,), norm.weight.double(), norm.eps
    )
    check(pair.layer.normed(norm, residual, None), pair.product(normed))
    gate, up = pair.product(normed).chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    check(pair.layer.normed_gated(norm, residual, None, SILU), expected)
    pending = pair.x(3)
    both = (residual + pending).double()
    normed = torch.nn.functional.rms_norm(both, (COLUMNS,), norm.weight.double(), norm.eps)
    check(pair.layer.normed(norm, residual.clone(), pending), pair.product(normed))
    x, total = pair.x(3), torch.randn(3, 2 * ROWS, device=DEVICE).half()
    expected = total.double() + pair.product(x)
    added = pair.layer.add_to(total, x)
    assert (added is None) is (not stored.ordered)
    check(total if added is None else total + added, expected)


@pytest.mark.parametrize("shape", [(64, 384), (48, 256), (32, 192)], ids=str)
def test_floats_that_become_four_bits_while_loading(shape: tuple[int, int]) -> None:
    """(48, 256) and (32, 192) make no tiles: rounded likewise, they are floats again."""
    settings = ModelSettings(dtype="float16", quantization="int4")
    options = LayerOptions(settings, torch.device(DEVICE))
    layer = TiledInt4Linear(shape[1], {"q": shape[0]}, False, options)
    generator = torch.Generator("cpu").manual_seed(0)
    weight = torch.randn(*shape, generator=generator, device="cpu") / 16
    weight[5, :128] = 0
    ((_, target),) = layer.checkpoint_targets("layer")
    target.write(0, weight[:16])
    target.write(16, weight[16:])
    layer.finish_loading()
    product = layer.products[0]
    assert product.weight.is_floating_point() == (shape[0] % 32 > 0 or shape[1] % 128 > 0)
    assert product.weight.is_floating_point() or product.scale.dtype is torch.float16
    rounded = dequantize_rows(*quantize_rows(weight)).to(DEVICE)
    x = torch.randn(3, shape[1], device=DEVICE).half()
    check(layer(x), x.double() @ rounded.double().T)


def test_parts_in_different_orders() -> None:
    pair = Pair(Gptq(group=32, ordered=True), alike=False)
    assert len(pair.layer.products) == 2
    x = pair.x(2)
    check(pair.layer(x), pair.product(x))


@pytest.mark.parametrize(("rows", "columns"), [(24, 256), (64, 192)])
def test_weights_that_make_no_tiles_become_floats(rows: int, columns: int) -> None:
    pair = Pair(Gptq(group=32), rows, columns)
    x, total = pair.x(2), torch.zeros(2, 2 * rows, device=DEVICE).half()
    check(pair.layer(x), pair.product(x))
    assert pair.layer.add_to(total, x) is not None
    assert pair.layer.products[0].weight.is_floating_point()

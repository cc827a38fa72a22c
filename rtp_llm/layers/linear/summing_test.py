# SPDX-License-Identifier: Apache-2.0
"""Layers that give parts of a sum, and the norm that makes the sum, with ranks that are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers import LayerOptions, RMSNorm, Shard, make_linear, residual_norm
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.linear.fp8 import Fp8Linear
from rtp_llm.layers.linear.fused import FusedLinear
from rtp_llm.layers.weights.shard_targets import LinearShards

CPU = torch.device("cpu")
SIZE, ROWS = 256, 128


class Twins(Group):
    """Two ranks that have the same of everything; `sums` counts."""

    def __init__(self) -> None:
        self.rank, self.size, self.sums = 0, 2, 0

    def all_reduce(self, tensor: Tensor) -> None:
        self.sums += 1
        tensor.mul_(2)


def options(twins: Twins, **settings: Any) -> LayerOptions:
    ranks = TensorParallel(0, 2, twins)
    values = ModelSettings(dtype="bfloat16", **settings)
    return LayerOptions(values, CPU, fp8_products=True, tensor_parallel=ranks)


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Twins]:
    """With kernels of everything for the CPU, whose references run."""
    torch.manual_seed(0)
    monkeypatch.setattr(ops, "has_kernel", lambda name, kind: True)
    for rows in ("fused_linear_rows", "skinny_linear_rows"):
        monkeypatch.setattr(f"rtp_llm.ops.{rows}", lambda weight: 16)
    ops.allow_reference_ops(True)
    yield Twins()
    ops.allow_reference_ops(False)


def norms(twins: Twins) -> tuple[RMSNorm, RMSNorm]:
    """That of the residual, and one with the same weight that sums nothing."""
    summing, plain = residual_norm(SIZE, 1e-6, options(twins)), RMSNorm(SIZE, 1e-6, options(twins))
    for norm in (summing, plain):
        norm.weight.data.copy_(torch.linspace(0.5, 1.5, SIZE))
    return summing, plain


def test_the_norm_of_the_residual_makes_the_sum(twins: Twins) -> None:
    summing, plain = norms(twins)
    residual, part = torch.randn(2, 5, SIZE).bfloat16().unbind()
    ours, theirs = residual.clone(), residual.clone()
    x = summing.after(part.clone(), ours)
    assert torch.equal(x, plain.after(2 * part, theirs)) and torch.equal(ours, theirs)
    assert twins.sums == 1
    assert torch.equal(summing.after(None, ours), plain(ours)) and twins.sums == 1


def test_sums_are_made_before_norms_are_quantised(twins: Twins) -> None:
    layer = make_linear(SIZE, {"x": ROWS}, False, options(twins, quantization="fp8"))
    assert isinstance(layer, Fp8Linear)
    weight = torch.randn(ROWS, SIZE).mul(0.1)
    ((_, target),) = layer.part_targets("x", 0)
    target.write(0, weight)
    summing, plain = norms(twins)
    residual, part = torch.randn(2, 5, SIZE).bfloat16().unbind()
    sums, given = residual + 2 * part, residual.clone()
    quantised = layer.normed(summing, given, part.clone())
    # A norm within a layer, as that of a compressed query, sums nothing.
    inside = layer.normed(plain, sums.clone(), None)
    assert torch.equal(given, sums) and twins.sums == 1
    assert torch.equal(inside, quantised)
    exact = plain(sums).float() @ weight.T
    assert (quantised.float() - exact).norm() < 0.1 * exact.norm()


def test_a_part_of_a_sum_is_not_added_to_the_residual(twins: Twins) -> None:
    shards = LinearShards(columns=Shard(2 * SIZE, ((0, SIZE),)))
    layer = make_linear(SIZE, {"o": ROWS}, True, options(twins), shards=shards)
    assert isinstance(layer, FusedLinear)
    for parameter in layer.parameters():
        parameter.data.normal_()
    for rows in (2, 17):  # few, in the kernel for these, and many
        residual, x = torch.zeros(rows, ROWS).bfloat16(), torch.randn(rows, SIZE).bfloat16()
        part = layer.add_to(residual, x)
        assert part is not None and not residual.any()
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(part, expected, rtol=2e-2, atol=2e-2)


def test_few_rows_of_a_sum_are_gated_in_their_product(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel sums and norms, the next one multiplies and gates."""
    layer = make_linear(SIZE, {"gate": ROWS, "up": ROWS}, False, options(twins))
    layer.get_parameter("weight").data.normal_(std=0.1)
    activation = GatedActivation("silu")
    summing, plain = norms(twins)
    residual, part = torch.randn(2, 5, SIZE).bfloat16().unbind()
    sums, given = residual + 2 * part, residual.clone()
    expected = activation(layer(plain(sums)))
    for alone in ("skinny_linear", "silu_and_mul", "norm_gated_linear"):
        monkeypatch.setattr(ops, alone, None)
    actual = layer.normed_gated(summing, given, part.clone(), activation)
    assert torch.equal(given, sums) and twins.sums == 1
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)

# SPDX-License-Identifier: Apache-2.0
"""Experts of gpt-oss in Triton, by their references: the same sums as on the CPU, the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.layers import LayerOptions
from rtp_llm.layers.activation import SWIGLU_OAI
from rtp_llm.layers.moe import ExpertContext, ExpertWeights, MoeConfig
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.mxfp4_experts import Mxfp4Executor
from rtp_llm.layers.moe.mxfp4_fused import Mxfp4FusedExecutor
from rtp_llm.layers.moe.plain import PlainExecutor
from rtp_llm.layers.moe.strategy import choose_executor
from rtp_llm.layers.moe.triton_biased import TritonBiasedExecutor
from rtp_llm.layers.weights.mxfp4 import Mxfp4, why_not_multiplied
from rtp_llm.layers.weights.stacked import StackedLinearWeights, StoredExperts
from rtp_llm.testing.capabilities import HOPPER, XPU
from rtp_llm.testing.packages import pretend_installed

EXPERTS, HIDDEN, INNER = 4, 64, 128
CONFIG = MoeConfig(HIDDEN, EXPERTS, 2, INNER, activation=SWIGLU_OAI, expert_bias=True, limit=1.0)


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    torch.manual_seed(0)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def context(weights: str) -> ExpertContext:
    return ExpertContext(CONFIG, HOST, torch.bfloat16, weights, "local", EXPERTS)


def stack(weights: str, parts: tuple[str, ...], rows: int, columns: int) -> StackedLinearWeights:
    """A stack whose weights and biases are drawn here."""
    stored = Mxfp4() if weights == "mxfp4" else None
    formats = {f"{expert}.{part}": stored for expert in range(EXPERTS) for part in parts if stored}
    options = LayerOptions(ModelSettings(dtype="bfloat16"), torch.device("cpu"), formats=formats)
    sizes, kept = dict.fromkeys(parts, rows), StoredExperts(bias=True)
    layer = StackedLinearWeights(columns, sizes, EXPERTS, options, stored=kept)
    assert layer.bias is not None
    layer.bias.normal_()
    if layer.scale is None:
        layer.weight.normal_(std=columns**-0.5)
    else:
        layer.weight.view(torch.uint8).random_(0, 256)
        layer.scale.view(torch.uint8).random_(118, 124)
    return layer


@pytest.mark.parametrize("weights", ["plain", "mxfp4"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_the_sums_are_those_of_the_cpu(weights: str, tokens: int) -> None:
    held = ExpertWeights(
        stack(weights, ("gate_proj", "up_proj"), INNER, HIDDEN),
        stack(weights, ("down_proj",), HIDDEN, INNER),
    )
    ids = torch.rand(tokens, EXPERTS).topk(2).indices.int()
    ids[0, 1] = -1  # an expert on another rank
    given = Dispatched(torch.randn(tokens, HIDDEN).bfloat16(), ids, torch.rand(tokens, 2))
    on_cpu = Mxfp4Executor if weights == "mxfp4" else PlainExecutor
    expected = on_cpu(context(weights), held).execute(given)
    found = TritonBiasedExecutor(context(weights), held).execute(given)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    if weights == "mxfp4":
        fused = Mxfp4FusedExecutor(context(weights), held)
        fused.finish_loading()
        torch.testing.assert_close(fused.execute(given), expected, rtol=3e-2, atol=3e-2)


def test_it_is_chosen_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, True, "triton")
    monkeypatch.setattr(ops, "has_kernel", lambda name, on: "mxfp4" not in name)
    for weights in ("plain", "mxfp4"):
        on_gpu = replace(context(weights), capabilities=HOPPER)
        assert choose_executor(on_gpu) is TritonBiasedExecutor
        silu = replace(on_gpu, config=replace(CONFIG, activation="silu"))
        assert "the activation swigluoai" in TritonBiasedExecutor.supports(silu).reason
    monkeypatch.setattr(ops, "has_kernel", lambda name, on: name != "mxfp4_grouped_linear")
    packed = replace(context("mxfp4"), capabilities=HOPPER)
    assert choose_executor(packed) is Mxfp4FusedExecutor
    odd = replace(packed, config=replace(CONFIG, intermediate_size=96))
    assert "not multiples of 64" in Mxfp4FusedExecutor.supports(odd).reason
    assert choose_executor(odd) is TritonBiasedExecutor
    assert not why_not_multiplied(torch.bfloat16, HOPPER)
    assert "tensor cores" in why_not_multiplied(torch.float32, HOPPER)
    assert "no kernel on" in why_not_multiplied(torch.bfloat16, XPU)

# SPDX-License-Identifier: Apache-2.0
"""Experts in FP8 with scales of channels: the formula, loading in every format, the choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.layers import LayerOptions, NotLocal, loads_last
from rtp_llm.layers.moe import ExpertContext, ExpertWeights, MoeConfig
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.fp8_channel_experts import Fp8ChannelExecutor
from rtp_llm.layers.weights.fp8_formats import Fp8Channel, Fp8Tensor
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.quantization.fp8_channels import dequantize_channels, quantize_channels
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu

EXPERTS, HIDDEN, INNER = 4, 80, 48


@pytest.fixture(autouse=True)
def references(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    multiply_fp8_on_cpu(monkeypatch.setattr)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def context(**changes: Any) -> ExpertContext:
    config = MoeConfig(hidden_size=HIDDEN, num_experts=EXPERTS, top_k=2, intermediate_size=INNER)
    given = {"capabilities": HOST, "dtype": torch.bfloat16, "weights": "fp8_channel"}
    return ExpertContext(
        **{"config": config, "slots": EXPERTS, "dispatcher": "local", **given, **changes}
    )


def stack(
    parts: tuple[str, ...], rows: int, columns: int, local: tuple[int, ...] | None = None
) -> tuple[StackedLinearWeights, Tensor]:
    """A stack filled from scales of channels and of tensors, and what its numbers stand for."""
    formats = {
        f"mlp.experts.{expert}.{part}": kind("weight_scale")
        for expert, kind in enumerate((Fp8Channel, Fp8Tensor) * (EXPERTS // 2))
        for part in parts
    }
    settings = ModelSettings(dtype="bfloat16")
    options = LayerOptions(
        settings, torch.device("cpu"), path="mlp.experts.", formats=formats, fp8_products=True
    )
    layer = StackedLinearWeights(columns, dict.fromkeys(parts, rows), EXPERTS, options, local)
    found = sorted(
        layer.checkpoint_targets("mlp.experts.x."), key=lambda pair: loads_last([pair[1]])
    )
    exact = torch.empty(EXPERTS, len(parts), rows, columns)
    for expert in range(EXPERTS):
        for number, part in enumerate(parts):
            numbers, scales = quantize_channels(torch.randn(rows, columns) / columns**0.5)
            if isinstance(formats[f"mlp.experts.{expert}.{part}"], Fp8Tensor):
                scales = scales[:1]
            exact[expert, number] = numbers.float() * scales
            sources = {"weight": numbers, "weight_scale": scales.view(-1, 1)}
            for name, target in found:
                *_, of_expert, of_part, suffix = name.split(".")
                if (of_expert, of_part) != (str(expert), part):
                    continue
                source = sources[suffix].view(target.shape)
                assert isinstance(target, NotLocal) == (expert not in layer.local)
                if expert in layer.local:
                    target.write(0, source)
    return layer, exact.flatten(1, 2)


def rounded(x: Tensor) -> Tensor:
    numbers, scales = ops.fp8_quantize_tokens(x)
    return numbers.float() * scales


@pytest.mark.parametrize("tokens", [1, 9])
def test_the_sums_are_those_of_the_formula(tokens: int) -> None:
    (gate_up, first), (down, second) = (
        stack(("gate_proj", "up_proj"), INNER, HIDDEN),
        stack(("down_proj",), HIDDEN, INNER),
    )
    executor = Fp8ChannelExecutor(context(), ExpertWeights(gate_up, down))
    x = torch.randn(tokens, HIDDEN).bfloat16()
    ids = torch.rand(tokens, EXPERTS).topk(2).indices.int()
    ids[0, 1] = -1  # an expert on another rank
    weights = torch.rand(tokens, 2)
    expected = torch.zeros(tokens, HIDDEN)
    for token, slot in ((ids >= 0).nonzero()).tolist():
        expert = int(ids[token, slot])
        gate, up = (rounded(x[token : token + 1]) @ first[expert].T).chunk(2, dim=-1)
        gated = (functional.silu(gate) * up).bfloat16()
        expected[token] += weights[token, slot] * (rounded(gated) @ second[expert].T)[0]
    out = executor.execute(Dispatched(x, ids, weights))
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)


def test_slots_have_the_experts_of_this_rank() -> None:
    layer, exact = stack(("gate_proj", "up_proj"), INNER, HIDDEN, (2, 1, 2))
    assert layer.scale is not None and layer.scale.shape == (3, 2 * INNER, 1)
    for slot, expert in enumerate((2, 1, 2)):
        assert torch.equal(
            dequantize_channels(layer.weight[slot], layer.scale[slot]), exact[expert]
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"weights": "fp8"}, "channel scales, not fp8"), ({"weights": "plain"}, "not plain")],
)
def test_other_weights_are_refused(changes: dict[str, Any], reason: str) -> None:
    assert Fp8ChannelExecutor.supports(context())
    assert reason in Fp8ChannelExecutor.supports(context(**changes)).reason

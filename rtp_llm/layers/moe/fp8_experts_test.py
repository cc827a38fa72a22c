# SPDX-License-Identifier: Apache-2.0
"""FP8 experts against a loop over experts in float32, in every form."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.layers import LayerOptions
from rtp_llm.layers.moe import MoeConfig, choose_executor
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights
from rtp_llm.layers.moe.fp8_experts import (
    MAX_MASKED_TOKENS,
    Fp8ContiguousExecutor,
    Fp8Executor,
    Fp8MaskedExecutor,
    usual_rows,
)
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.quantization.fp8 import dequantize_blocks, padded, quantize_blocks

FORMS = [Fp8MaskedExecutor, Fp8ContiguousExecutor, Fp8Executor]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
EXPERTS = 5
GATE_UP, DOWN = ("gate_proj", "up_proj"), ("down_proj",)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def context(hidden, inner, experts=EXPERTS, **changes):
    config = MoeConfig(hidden_size=hidden, num_experts=experts, top_k=2, intermediate_size=inner)
    given = {"capabilities": HOST, "dtype": torch.bfloat16, "weights": "fp8", "dispatcher": "local"}
    return ExpertContext(**{"config": config, "slots": experts, **given, **changes})


def stack(parts, rows, columns, experts=EXPERTS):
    """A filled stack and the floats [experts, parts * rows, columns] that its blocks stand for."""
    settings = ModelSettings(dtype="bfloat16", quantization="fp8")
    options = LayerOptions(settings, torch.device("cpu"), fp8_products=True)
    layer = StackedLinearWeights(columns, dict.fromkeys(parts, rows), experts, options)
    floats = torch.randn(experts, len(parts), rows, columns) / columns**0.5
    targets = dict(layer.checkpoint_targets("x."))
    for expert in range(experts):
        for number, part in enumerate(parts):
            targets[f".{expert}.{part}.weight"].write(0, floats[expert, number])
    return layer, dequantize_blocks(*quantize_blocks(floats)).flatten(1, 2)


def rounded(x):
    """x as its FP8 groups have it."""
    numbers, scales = ops.fp8_quantize(x)
    wide = scales[:, : len(x)].T.repeat_interleave(128, 1)[:, : x.shape[1]]
    return numbers.float() * wide


def expected(dispatched, gate_up, down):
    out = torch.zeros(dispatched.x.shape)
    for token, (ids, weights) in enumerate(zip(dispatched.ids, dispatched.weights, strict=True)):
        for expert, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            if expert >= 0:
                pair = (rounded(dispatched.x[token : token + 1]) @ gate_up[expert].T).bfloat16()
                gate, up = pair.float().chunk(2, dim=1)
                inner = rounded(torch.nn.functional.silu(gate) * up)
                out[token] += weight * (inner @ down[expert].T)[0]
    return out


@every_form
@pytest.mark.parametrize(("hidden", "inner"), [(256, 128), (200, 144)])
@pytest.mark.parametrize("tokens", [1, 7, MAX_MASKED_TOKENS + 44])
def test_sums_are_those_of_a_loop_over_experts(form, hidden, inner, tokens):
    gate_up, gate_up_floats = stack(GATE_UP, inner, hidden)
    down, down_floats = stack(DOWN, hidden, inner)
    executor = form(context(hidden, inner), ExpertWeights(gate_up, down))
    ids = torch.stack([torch.randperm(EXPERTS - 1)[:2] for _ in range(tokens)]).int()  # one is idle
    ids[torch.rand(ids.shape) < 0.2] = -1  # experts elsewhere
    ids[: tokens // 2, 0] = 3  # one has half of the tokens
    ids[: tokens // 2, 1] = -1
    dispatched = Dispatched(torch.randn(tokens, hidden).bfloat16(), ids, torch.rand(tokens, 2))
    out = executor.execute(dispatched)
    assert out.shape == (tokens, hidden) and out.is_contiguous() and out.dtype is torch.bfloat16
    exact = expected(dispatched, gate_up_floats, down_floats)
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    assert (out.float() - exact).norm() < 0.005 * exact.norm()


@every_form
@pytest.mark.parametrize("experts", [8, 64, 256])
@pytest.mark.parametrize("top_k", [1, 8])
def test_many_experts_and_one_that_is_hot(form, experts, top_k):
    hidden = inner = 128
    gate_up, gate_up_floats = stack(GATE_UP, inner, hidden, experts)
    down, down_floats = stack(DOWN, hidden, inner, experts)
    executor = form(context(hidden, inner, experts), ExpertWeights(gate_up, down))
    tokens = 12
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()
    hot = int(ids[0, 0])
    others = (ids[:, 1:] == hot).any(dim=1)
    ids[~others, 0] = hot  # all tokens go to it
    dispatched = Dispatched(torch.randn(tokens, hidden).bfloat16(), ids, torch.rand(tokens, top_k))
    exact = expected(dispatched, gate_up_floats, down_floats)
    out = executor.execute(dispatched).float()
    torch.testing.assert_close(out, exact, rtol=0.02, atol=0.03)
    assert (out - exact).norm() < 0.005 * exact.norm()


@every_form
def test_tokens_whose_experts_are_all_elsewhere_give_zeros(form):
    gate_up, _ = stack(GATE_UP, 128, 128)
    down, _ = stack(DOWN, 128, 128)
    executor = form(context(128, 128), ExpertWeights(gate_up, down))
    ids = torch.full((3, 2), -1, dtype=torch.int32)
    dispatched = Dispatched(torch.randn(3, 128).bfloat16(), ids, torch.rand(3, 2))
    assert torch.equal(executor.execute(dispatched), torch.zeros(3, 128).bfloat16())


@pytest.mark.parametrize(
    ("changes", "name"),
    [({}, "fp8"), ({"weights": "plain"}, "plain")],
)
def test_weights_in_blocks_are_taken_and_no_others(changes, name):
    assert choose_executor(context(128, 128, **changes)).name == name
    for form in FORMS:
        assert bool(form.supports(context(128, 128, **changes))) == (name == "fp8")


def test_padded_columns_hold_nothing():
    layer, _ = stack(GATE_UP, 144, 200)
    assert layer.weight.shape == (EXPERTS, 2 * padded(144), padded(200))


@pytest.mark.parametrize(("entries", "slots", "rows"), [(0, 8, 1), (8, 128, 1), (512, 8, 80)])
def test_rows_of_most_experts(entries, slots, rows):
    assert usual_rows(entries, slots) == rows
    loads = torch.bincount(torch.randint(slots, (entries,)), minlength=slots)
    assert (loads <= rows).float().mean() >= 0.75

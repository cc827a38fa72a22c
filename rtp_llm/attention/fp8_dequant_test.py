# SPDX-License-Identifier: Apache-2.0
"""Tests of prompts over a KV cache of 8-bit floats, the CPU's attention as the quick kernel."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import AttentionBackend, AttentionConfig, explain
from rtp_llm.attention import fp8_dequant as module
from rtp_llm.attention.fp8_dequant import Fp8DequantBackend
from rtp_llm.device import Support
from rtp_llm.device.capabilities import HOST
from rtp_llm.testing.attention.steps import forget_old_blocks, shape_of, step_of
from rtp_llm.testing.capabilities import ADA, HOPPER
from rtp_llm.testing.operator_checks import assert_near
from rtp_llm.testing.packages import pretend_installed
from rtp_llm.testing.paged_batches import PagedBatch

HALF, NARROW = torch.bfloat16, torch.float8_e4m3fn
CONFIG = AttentionConfig(HOST, HALF, NARROW, 4, 2, 64, 16)
CUDA = AttentionConfig(HOPPER, HALF, NARROW, 16, 8, 128, 16)


class _Others(AttentionBackend):
    """Notes the steps that are left to it."""

    name, priority = "others", 0

    @classmethod
    def supports(cls, config):
        return Support.yes()

    def __init__(self):
        self.steps = []

    def forward(self, q, layer, window, batch, sinks=None):
        self.steps.append(batch)
        return torch.zeros_like(q)


def widen_pages(cache, pages, out):
    out.copy_(cache.to(out.dtype)[pages.long()])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(Fp8DequantBackend, "kernel", staticmethod(lambda: widen_pages))
    pretend_installed(monkeypatch, True, "triton")
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)  # there is no GPU to copy to


def narrow_batch(lengths, config=CONFIG):
    """A batch and its step, whose cache has 8-bit floats; the batch has the same values."""
    batch = PagedBatch.random(lengths, shape_of(config), HALF)
    narrow = batch.kv_cache.to(NARROW)
    batch = dataclasses.replace(batch, kv_cache=narrow.to(HALF))
    return batch, narrow


def step_over(batch, narrow):
    return dataclasses.replace(step_of(batch), kv_cache=(narrow,))


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(
    "lengths", [[(300, 300)], [(1, 40), (300, 431), (200, 200), (17, 17)], [(290, 1000)]]
)
def test_it_is_attention_over_the_widened_cache(monkeypatch, lengths, window):
    monkeypatch.setattr(module, "_ROWS_WORTH_IT", 1)
    batch, narrow = narrow_batch(lengths)
    sinks = torch.randn(CONFIG.num_heads) if window else None
    expected = batch.expected(window=window, sinks=sinks)
    if window:
        forget_old_blocks(batch, window)
    others, step = _Others(), step_over(batch, narrow)
    actual = Fp8DequantBackend(CONFIG, others).forward(batch.q, 0, window, step, sinks)
    assert not others.steps
    assert_near(actual, expected.to(HALF))


def test_layers_of_a_step_share_a_plan_and_all_share_the_scratch(monkeypatch):
    monkeypatch.setattr(module, "_ROWS_WORTH_IT", 1)
    backend = Fp8DequantBackend(CONFIG, _Others())
    made = []
    plan = Fp8DequantBackend._make_plan
    monkeypatch.setattr(
        Fp8DequantBackend, "_make_plan", lambda *given: made.append(given) or plan(*given)
    )
    for number in range(3):
        batch, narrow = narrow_batch([(60 + number, 70 + number)])
        step = step_over(batch, narrow)
        step = dataclasses.replace(step, kv_cache=(narrow, narrow), layer_group=(0, 0))
        results = [backend.forward(batch.q, layer, 0, step) for layer in (0, 1)]
        assert torch.equal(*results)
        assert_near(results[0], batch.expected().to(HALF))
        assert len(made) == number + 1


@pytest.mark.parametrize(
    ("lengths", "taken"),
    [
        ([(600, 600)], True),
        ([(200, 200)], False),  # too few queries for each key
        ([(1, 9000), (1200, 1200)], False),  # decoding's keys are many
        ([(1, 500), (1200, 1200)], True),
    ],
)
def test_steps_where_widening_costs_more_than_it_saves_are_left(lengths, taken):
    batch, narrow = narrow_batch(lengths)
    others = _Others()
    Fp8DequantBackend(CONFIG, others).forward(batch.q, 0, 0, step_over(batch, narrow))
    assert (not others.steps) == taken


def test_more_pages_than_the_scratch_holds_are_left(monkeypatch):
    batch, narrow = narrow_batch([(600, 608)])
    pages = 38
    for max_pages, left in ((pages, 0), (pages - 1, 1)):
        monkeypatch.setattr(module, "_SCRATCH_BYTES", max_pages * 2 * 2 * 16 * 2 * 64)
        others = _Others()
        Fp8DequantBackend(CONFIG, others).forward(batch.q, 0, 0, step_over(batch, narrow))
        assert len(others.steps) == left


def test_captured_steps_are_left():
    batch, narrow = narrow_batch([(600, 600)])
    others = _Others()
    step = dataclasses.replace(step_over(batch, narrow), host=None)
    Fp8DequantBackend(CONFIG, others).forward(batch.q, 0, 0, step)
    assert others.steps == [step]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"kv_dtype": HALF}, "nothing to widen"),
        ({"capabilities": ADA}, "written for wgmma"),
        ({"head_dim": 80}, "heads of 80"),
    ],
)
def test_what_it_supports(change, reason):
    config = dataclasses.replace(CUDA, **change)
    answer = Fp8DequantBackend.supports(config)
    assert bool(answer) == (not reason)
    assert reason in answer.reason
    assert "  fp8_dequant (priority 15): " in explain(config)

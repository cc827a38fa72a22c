# SPDX-License-Identifier: Apache-2.0
"""FlashInfer compared with the reference on an NVIDIA GPU; the first run compiles its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rtp_llm.attention import AttentionConfig, explain
from rtp_llm.attention.flashinfer import FlashInferBackend
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.testing.attention.steps import (
    KINDS,
    forget_old_blocks,
    shape_of,
    step_of,
)
from rtp_llm.testing.paged_batches import PagedBatch
from rtp_llm.testing.usable_gpu import usable_gpu

GPU = usable_gpu("cuda")
CAPABILITIES = HOST if GPU is None else GPU.capabilities()
HALF = torch.bfloat16
CONFIG = AttentionConfig(CAPABILITIES, HALF, HALF, 16, 8, 128, 16)
pytestmark = [
    pytest.mark.skipif(GPU is None, reason="no NVIDIA GPU, or not built for it"),
    pytest.mark.skipif(
        not FlashInferBackend.supports(CONFIG), reason=FlashInferBackend.supports(CONFIG).reason
    ),
]


@pytest.fixture(autouse=True)
def seeded_gpu() -> Iterator[None]:
    assert GPU is not None
    torch.manual_seed(0)
    with GPU.torch_device:
        yield


def backend_of(config: AttentionConfig) -> FlashInferBackend:
    return FlashInferBackend(config, PagedAttentionBackend(config))


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < 1.6e-2  # NaN fails too


@pytest.fixture(scope="module")
def backends() -> dict[tuple[int, int], FlashInferBackend]:
    """By heads and window; several steps through one backend, as in the engine."""
    return {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "window"), [(16, 0), (32, 0), (16, 300)])
def test_it_is_what_the_reference_is(backends, kind: str, heads: int, window: int) -> None:
    config = replace(CONFIG, num_heads=heads, windows=(window,))
    backend = backends.setdefault((heads, window), backend_of(config))
    batch = PagedBatch.random(KINDS[kind], shape_of(config), HALF)
    expected = batch.expected(window=window)
    if window:
        forget_old_blocks(batch, window)
    check(backend.forward(batch.q, 0, window, step_of(batch)), expected)


def test_plans_of_steps_that_are_still_queued_are_not_overwritten() -> None:
    """The host is many steps ahead of the device, each step with other lengths."""
    assert GPU is not None
    backend = backend_of(CONFIG)
    shape = shape_of(CONFIG)
    batches = [
        PagedBatch.random([(1, 30 + 97 * i), (1, 1500 - 83 * i)] * 8, shape, HALF)
        for i in range(12)
    ]
    expected = [batch.expected() for batch in batches]
    steps = [step_of(batch) for batch in batches]
    backend.forward(batches[0].q, 0, 0, steps[0])  # compiles
    busy = torch.randn(8192, 8192).to(HALF)
    results = []
    for batch, step in zip(batches, steps, strict=True):
        busy @ busy  # what the device is busy with while the host goes on
        results.append(backend.forward(batch.q, 0, 0, step))
    for actual, wanted in zip(results, expected, strict=True):
        check(actual, wanted)


def test_the_explanation_has_it() -> None:
    line = next(line for line in explain(CONFIG).splitlines() if line.startswith("  flashinfer"))
    assert "chosen" in line or "supported" in line
    forced = explain(replace(CONFIG, settings=ModelSettings(attention_backend="flashinfer")))
    assert "chosen by --attention-backend" in forced

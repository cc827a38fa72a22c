# SPDX-License-Identifier: Apache-2.0
"""Scales of a cache of 8-bit floats on a GPU: the backends that the factory chooses use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rtp_llm.attention import AttentionConfig, Rotation, make_backend
from rtp_llm.device.capabilities import HOST
from rtp_llm.testing.attention.scaled_steps import cache_scales, scaled_step
from rtp_llm.testing.usable_gpu import usable_gpu

GPU = usable_gpu("cuda")
CAPABILITIES = HOST if GPU is None else GPU.capabilities()
CONFIG = AttentionConfig(CAPABILITIES, torch.bfloat16, torch.float8_e4m3fn, 16, 8, 128, 16)
pytestmark = pytest.mark.skipif(
    GPU is None or not GPU.supports("quantized_kv_cache"), reason="no GPU with 8-bit caches"
)


@pytest.fixture(autouse=True)
def seeded_gpu() -> Iterator[None]:
    assert GPU is not None
    torch.manual_seed(0)
    with GPU.torch_device:
        yield


@pytest.mark.parametrize(
    "lengths",
    [[(1, 40), (1, 700), (1, 17)], [(30, 30), (5, 400)], [(1500, 1500)], [(1200, 1300), (1, 90)]],
    ids=str,
)
def test_keys_and_values_are_stored_and_read_with_their_scales(
    lengths: list[tuple[int, int]],
) -> None:
    assert GPU is not None
    backend: Any = make_backend(CONFIG)
    backend.keep_scales(0, cache_scales(GPU.torch_device))
    step, qkv, expected = scaled_step(lengths, CONFIG)
    backend.warm_up(step.kv_cache[0])
    actual = backend.attend(qkv.clone(), 0, 0, step, Rotation()).double()
    error = (actual - expected.flatten(1)).norm() / expected.norm()
    assert error < 0.06

# SPDX-License-Identifier: Apache-2.0
"""Prompts over an FP8 KV cache on a Hopper GPU, compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rtp_llm.attention import AttentionConfig, make_backend
from rtp_llm.attention.fp8_dequant import Fp8DequantBackend
from rtp_llm.attention.triton import TritonAttentionBackend
from rtp_llm.device.capabilities import HOST
from rtp_llm.testing.attention.steps import forget_old_blocks, shape_of, step_of
from rtp_llm.testing.paged_batches import PagedBatch
from rtp_llm.testing.usable_gpu import usable_gpu

GPU = usable_gpu("cuda")
CAPABILITIES = HOST if GPU is None else GPU.capabilities()
HALF, NARROW = torch.bfloat16, torch.float8_e4m3fn
CONFIG = AttentionConfig(CAPABILITIES, HALF, NARROW, 16, 8, 128, 16)
pytestmark = pytest.mark.skipif(
    GPU is None or not Fp8DequantBackend.supports(CONFIG),
    reason="no Hopper GPU, or not built for it",
)


@pytest.fixture(autouse=True)
def seeded_gpu() -> Iterator[None]:
    assert GPU is not None
    torch.manual_seed(0)
    with GPU.torch_device:
        yield


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize(
    "lengths",
    [[(1500, 1500)], [(1, 100), (1200, 1300), (900, 900), (1, 17)], [(1030, 1733), (1024, 1024)]],
)
def test_prompts_are_what_the_reference_says(
    monkeypatch: pytest.MonkeyPatch, lengths: list[tuple[int, int]], window: int
) -> None:
    # Nothing is left to another backend: all of these are worth it, or made to be.
    monkeypatch.setattr("rtp_llm.attention.fp8_dequant._ROWS_WORTH_IT", 1)
    config = replace(CONFIG, windows=(window,))
    backend = Fp8DequantBackend(config, TritonAttentionBackend(config))
    monkeypatch.setattr(backend.others, "forward", None)
    batch = PagedBatch.random(lengths, shape_of(config), HALF)
    narrow = batch.kv_cache.to(NARROW)
    batch = replace(batch, kv_cache=narrow.to(HALF))
    expected = batch.expected(window=window)
    if window:
        forget_old_blocks(batch, window)
    step = replace(step_of(batch), kv_cache=(narrow,))
    actual = backend.forward(batch.q, 0, window, step).double()
    assert (actual - expected).abs().max() < 1.6e-2 * expected.abs().max()  # NaN fails too


@pytest.mark.parametrize("page", [16 * 8 * 128, 8 * 1 * 64, 5000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pages_are_widened(page: int, dtype: torch.dtype) -> None:
    cache = torch.randn(50, page).to(NARROW)
    pages = torch.randint(50, (33,), dtype=torch.int32)
    out = torch.full((33, page), torch.nan, dtype=dtype)
    Fp8DequantBackend.kernel()(cache, pages, out)
    assert torch.equal(out, cache.to(dtype)[pages.long()])
    Fp8DequantBackend.kernel()(cache, pages[:0], out[:0])


def test_it_is_what_the_factory_takes() -> None:
    names, backend = [], make_backend(CONFIG)
    while backend is not None:
        names.append(backend.name)
        backend = getattr(backend, "others", None)
    assert names == ["decode", "fp8_dequant", "triton"]

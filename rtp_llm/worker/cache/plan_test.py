"""Tests of the number of blocks for made-up budgets."""

from __future__ import annotations

import pytest

from rtp_llm.worker.cache.budget import (
    MIB,
    CacheBudget,
    CacheSizeError,
    MeasuredMemory,
    measured_budget,
    modest_budget,
)
from rtp_llm.worker.cache.plan import CacheShape, plan_cache

GIB = 2**30
# Qwen3-0.6B in bfloat16: 28 layers, 8 heads of 128: 112 KiB a token, 1.75 MiB a block.
QWEN = CacheShape((28,), token_elements=2 * 8 * 128, element_size=2, block_size=16)
# Two groups of two layers; 4 KiB a token, 64 KiB a block.
TINY = CacheShape((2, 2), token_elements=2 * 2 * 64, element_size=4, block_size=16)


def plan(shape, *, context=40960, max_seq_len=None, mb=None, weights=1200 * MIB, free=20 * GIB):
    one = shape.bytes_for(max_seq_len or context)
    budget = modest_budget(mb, free=free, weights=weights, one_sequence=one)
    return plan_cache(shape, budget, context=context, max_seq_len=max_seq_len)


def test_bytes_of_a_block():
    assert QWEN.block_bytes == 28 * 2 * 8 * 128 * 2 * 16 == 112 * 1024 * 16
    assert TINY.block_bytes == 64 * 1024
    assert TINY.bytes_for(16) == 2 * TINY.block_bytes
    assert TINY.bytes_for(17) == 3 * TINY.block_bytes
    # DeepSeek-V3 in bfloat16: 61 layers with a latent of 512 and a key of 64.
    latents = CacheShape((61,), token_elements=512 + 64, element_size=2, block_size=64)
    assert latents.block_bytes == 61 * 576 * 2 * 64


@pytest.mark.parametrize(
    ("shape", "changes", "blocks", "length"),
    [
        # four times the weights
        (QWEN, {}, 4800 * MIB // QWEN.block_bytes, 40960),
        # one sequence of the whole context, where that is more
        (QWEN, {"context": 60000}, 3751, 60000),
        # memory is the limit and the length follows
        (QWEN, {"free": 2 * GIB}, 819, 818 * 16),
        # a small model stays small
        (TINY, {"context": 2048, "weights": 8 * MIB}, 1024, 2048),
        (TINY, {"context": 2048, "max_seq_len": 512, "weights": 8 * MIB}, 1024, 512),
        (QWEN, {"mb": 1024}, 585, 584 * 16),
    ],
)
def test_plans_in_shared_memory(shape, changes, blocks, length):
    result = plan(shape, **changes)
    assert (result.num_blocks, result.max_model_len) == (blocks, length)
    assert result.bytes == blocks * shape.block_bytes
    assert result.capacity == (blocks - 1) * 16 >= result.max_model_len


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"mb": 64, "max_seq_len": 4096},
            "holds 560 tokens with kv_cache_mem_mb=64, but one sequence of max_seq_len=4096 tokens "
            "needs 450 MiB: raise it, or lower max_seq_len",
        ),
        ({"mb": 1}, "holds 0 tokens with kv_cache_mem_mb=1"),
        (
            {"free": GIB, "max_seq_len": 40960},
            r"the free memory \(1024 MiB, 30% kept back\).*set kv_cache_mem_mb",
        ),
        ({"free": 0}, "holds 0 tokens with the free memory"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(changes, words):
    with pytest.raises(CacheSizeError, match=words):
        plan(QWEN, **changes)


def test_a_device_of_its_own_memory_gives_all_that_is_left():
    memory = MeasuredMemory(total=140 * GIB, free=136 * GIB, prompt_peak=2 * GIB, sampler=GIB)
    result = plan_cache(QWEN, measured_budget(None, 0, memory), context=40960, max_seq_len=None)
    assert result.num_blocks == 129 * GIB // QWEN.block_bytes
    assert result.max_model_len == 40960


@pytest.mark.parametrize("bytes_", [-GIB, 0, QWEN.block_bytes])
def test_no_budget_is_refused(bytes_):
    with pytest.raises(CacheSizeError, match="holds 0 tokens with nothing"):
        plan_cache(QWEN, CacheBudget(bytes_, "nothing", "more"), context=64, max_seq_len=None)

# SPDX-License-Identifier: Apache-2.0
"""Tests of the number of blocks for made-up budgets."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.attention import (
    CacheGroups,
    FullAttentionSpec,
    MlaSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)
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
QWEN = CacheShape(
    CacheGroups.of([FullAttentionSpec(8, 128, torch.bfloat16)] * 28).groups, 16, 256, 2048
)
# Two groups of two layers; 4 KiB a token, 64 KiB a block.
TINY = CacheShape(
    CacheGroups.of(
        [FullAttentionSpec(2, 64, torch.float32)] * 2
        + [SlidingWindowSpec(2, 64, torch.float32, window=512)] * 2
    ).groups,
    block_size=16,
    max_running=256,
    max_batch_tokens=2048,
)
# Of one block of every group.
BLOCK = {shape: shape.bytes(1, 0) for shape in (QWEN, TINY)}


def plan(shape, *, context=40960, max_seq_len=None, mb=None, weights=1200 * MIB, free=20 * GIB):
    one = shape.bytes_for(max_seq_len or context)
    budget = modest_budget(mb, free=free, weights=weights, one_sequence=one)
    return plan_cache(shape, budget, context=context, max_seq_len=max_seq_len)


def test_more_than_is_free_is_refused():
    assert plan(QWEN, mb=2048, free=2 * GIB).bytes <= 2 * GIB
    with pytest.raises(CacheSizeError, match="kv_cache_mem_mb=2049 does not fit: 2048 MiB of"):
        plan(QWEN, mb=2049, free=2 * GIB)


def test_bytes_of_a_block():
    assert BLOCK[QWEN] == 28 * 2 * 8 * 128 * 2 * 16 == 112 * 1024 * 16
    assert BLOCK[TINY] == 64 * 1024
    assert TINY.bytes_for(16) == 2 * BLOCK[TINY]
    assert TINY.bytes_for(17) == 3 * BLOCK[TINY]
    # DeepSeek-V3 in bfloat16: 61 layers with a latent of 512 and a key of 64.
    (mla,) = CacheGroups.of([MlaSpec(512, 64, torch.bfloat16)] * 61).groups
    assert mla.block_bytes(64) == 61 * 576 * 2 * 64


@pytest.mark.parametrize(
    ("shape", "changes", "blocks", "length"),
    [
        # four times the weights
        (QWEN, {}, 4800 * MIB // BLOCK[QWEN], 40960),
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
    assert (result.full_blocks, result.max_model_len) == (blocks, length)
    assert result.bytes == blocks * BLOCK[shape]
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
    assert result.full_blocks == 129 * GIB // BLOCK[QWEN]
    assert result.max_model_len == 40960


@pytest.mark.parametrize("bytes_", [-GIB, 0, BLOCK[QWEN]])
def test_no_budget_is_refused(bytes_):
    with pytest.raises(CacheSizeError, match="holds 0 tokens with nothing"):
        plan_cache(QWEN, CacheBudget(bytes_, "nothing", "more"), context=64, max_seq_len=None)


def shape_of(*specs, running=64, tokens=2048):
    return CacheShape(CacheGroups.of(specs).groups, 16, running, tokens)


FULL = FullAttentionSpec(8, 64, torch.bfloat16)
WINDOW = SlidingWindowSpec(8, 64, torch.bfloat16, window=128)
# A layer of Qwen3-Next: 32 heads of 128 x 128 in float32, and three inputs of the convolution.
STATE = RecurrentSpec(((32, 128, 128), (3, 8192)), (torch.float32, torch.bfloat16))


def blocks_of(shape, mebibytes):
    budget = CacheBudget(mebibytes * MIB, "a test", "more")
    return plan_cache(shape, budget, context=40960, max_seq_len=None)


def test_narrow_windows_leave_their_memory_to_full_attention():
    shape = shape_of(FULL, WINDOW, running=64, tokens=2048)
    result = blocks_of(shape, 4096)
    full, window = result.num_blocks
    block = FULL.block_bytes(16)
    # As many tokens as with equal groups and more: a quarter of the blocks suffices for windows.
    assert full == 4096 * MIB // (block + block // 4) > 4096 * MIB // (2 * block)
    assert window == -(-full // 4)
    assert result.capacity == (full - 1) * 16
    assert result.bytes <= 4096 * MIB < shape.bytes(full + 1, 0)


def test_windows_of_all_running_sequences_fit_twice():
    shape = shape_of(FULL, WINDOW, running=256, tokens=2048)
    result = blocks_of(shape, 512)
    # 128 tokens are 8 blocks, and 2 more for where they begin and end; a chunk has 128.
    assert result.num_blocks[1] == 2 * (1 + 256 * (8 + 2) + 128) < result.num_blocks[0]


@pytest.mark.parametrize("mebibytes", [1, 7, 64, 300, 1000, 5000])
@pytest.mark.parametrize("window", [16, 100, 512, 4096])
def test_the_capacity_never_falls_below_that_of_equal_groups(mebibytes, window):
    narrow = SlidingWindowSpec(8, 64, torch.bfloat16, window=window)
    shape = shape_of(FULL, narrow, FULL, narrow, narrow)
    full, windows = blocks_of(shape, mebibytes).num_blocks
    assert full >= mebibytes * MIB // (5 * FULL.block_bytes(16))
    assert windows <= full


def test_a_model_of_windows_alone_is_planned_by_its_tokens():
    result = blocks_of(shape_of(WINDOW, WINDOW), 64)
    assert result.num_blocks == (64 * MIB // (2 * WINDOW.block_bytes(16)),)


def test_states_take_half_of_a_small_budget_and_no_more_than_sequences_need():
    shape = shape_of(*[STATE] * 3, FULL, running=16)
    state = 3 * STATE.block_bytes(16)
    assert state == 3 * (2 * MIB + 48 * 1024)
    small = blocks_of(shape, 256)
    assert small.num_blocks[1] == 128 * MIB // state
    large = blocks_of(shape, 64 * 1024)
    assert large.num_blocks == ((64 * 1024 * MIB - 65 * state) // FULL.block_bytes(16), 1 + 4 * 16)


def test_states_of_one_sequence_must_fit():
    shape = shape_of(*[STATE] * 3, FULL)
    assert blocks_of(shape, 20).num_blocks[1] == 3
    with pytest.raises(CacheSizeError, match="needs 19 MiB"):
        plan_cache(shape, CacheBudget(18 * MIB, "a test", "more"), context=64, max_seq_len=64)


@pytest.mark.parametrize("tokens", [64, 1024, 4096, 40960])
def test_states_give_way_to_the_longest_sequence(tokens):
    """What an error says that a sequence needs suffices, and a MiB less does not."""
    shape = shape_of(*[STATE] * 3, FULL)
    need = -(-shape.bytes_for(tokens) // MIB)
    result = plan_cache(
        shape, CacheBudget(need * MIB, "a test", "more"), context=64, max_seq_len=tokens
    )
    assert result.max_model_len == tokens <= result.capacity
    assert result.num_blocks[1] >= 3
    assert result.bytes <= need * MIB
    with pytest.raises(CacheSizeError, match=f"needs {need} MiB"):
        plan_cache(
            shape, CacheBudget((need - 1) * MIB, "a test", "more"), context=64, max_seq_len=tokens
        )


def test_a_cache_without_attention_is_refused():
    with pytest.raises(ValueError, match="some layer must have attention"):
        shape_of(STATE)

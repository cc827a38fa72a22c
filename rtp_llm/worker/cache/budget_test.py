# SPDX-License-Identifier: Apache-2.0
"""Tests of the KV cache's share of a device's own memory, for made-up situations."""

from __future__ import annotations

import pytest

from rtp_llm.worker.cache.budget import (
    GRAPH_BYTES,
    MIB,
    CacheSizeError,
    MeasuredMemory,
    free_within,
    measured_budget,
    sampler_estimate,
)

GIB = 2**30


def test_the_estimate_of_sampling():
    assert sampler_estimate(256, 151936) == 256 * 151936 * 32


@pytest.mark.parametrize(
    ("memory", "reserve_mb", "kept", "reason"),
    [
        # a small device: 2 GiB
        (MeasuredMemory(24 * GIB, 20 * GIB), 0, 2 * GIB, "kept in any case"),
        # a large one: a twentieth
        (MeasuredMemory(140 * GIB, 136 * GIB), 0, 7 * GIB, "kept in any case"),
        # the setting, where it is more; less changes nothing
        (MeasuredMemory(24 * GIB, 20 * GIB), 4096, 4 * GIB, "as reserve_runtime_mem_mb says"),
        (MeasuredMemory(24 * GIB, 20 * GIB), 1024, 2 * GIB, "kept in any case"),
        # a large step
        (
            MeasuredMemory(24 * GIB, 20 * GIB, prompt_peak=5 * GIB, decode_peak=GIB),
            1024,
            5 * GIB,
            "5120 MiB of them are kept for steps",
        ),
        # graphs keep the largest decode step's memory, and some of the driver's
        (
            MeasuredMemory(24 * GIB, 20 * GIB, prompt_peak=5 * GIB, decode_peak=GIB, graphs=8),
            0,
            6 * GIB + 8 * GRAPH_BYTES,
            "kept for steps",
        ),
        # or those of the largest prompt in a graph
        (
            MeasuredMemory(
                24 * GIB, 20 * GIB, 8 * GIB, GIB, graphs=8, graph_share=0.25, sampler=GIB
            ),
            0,
            10 * GIB + 8 * GRAPH_BYTES,
            "kept for steps",
        ),
        (
            MeasuredMemory(
                24 * GIB, 20 * GIB, prompt_peak=GIB, decode_peak=GIB, graphs=2, sampler=3 * GIB
            ),
            0,
            4 * GIB + 2 * GRAPH_BYTES,
            "kept for sampling",
        ),
        # nothing is left
        (MeasuredMemory(24 * GIB, GIB), 0, 2 * GIB, "1024 of 24576 MiB are free"),
    ],
)
def test_what_is_kept_free(memory, reserve_mb, kept, reason):
    budget = measured_budget(None, reserve_mb, memory)
    assert budget.bytes == memory.free - kept
    assert reason in budget.source
    for setting in ("max_batch_tokens_size", "max_running_requests", "reserve_runtime_mem_mb"):
        assert setting in budget.remedy


@pytest.mark.parametrize(("share", "kept"), [(0.5, 12 + 1), (0.9, 2.4 + 1), (1.0, 2), (None, 2)])
def test_a_share_of_the_device(share, kept):
    memory = MeasuredMemory(24 * GIB, 20 * GIB, prompt_peak=GIB)
    budget = measured_budget(None, 0, memory, share)
    assert budget.bytes == pytest.approx(memory.free - kept * GIB, abs=1)
    assert ("gpu_memory_utilization says" in budget.source) == (kept > 2)
    assert measured_budget(512, 0, memory, share).bytes == 512 * MIB


def test_a_share_of_the_machine():
    assert free_within(None, 10, 100) == 10
    assert free_within(0.95, 10, 100) == 5
    assert free_within(0.5, 10, 100) == 0
    assert free_within(1.0, 10, 100) == 10


def test_the_setting_wins_over_the_reserve():
    memory = MeasuredMemory(8 * GIB, 4 * GIB, prompt_peak=GIB)
    budget = measured_budget(3072, 4096, memory)
    assert (budget.bytes, budget.source) == (3 * GIB, "kv_cache_mem_mb=3072")


def test_a_setting_that_leaves_steps_no_memory_is_refused():
    memory = MeasuredMemory(8 * GIB, 4 * GIB, prompt_peak=GIB + 1, decode_peak=GIB)
    with pytest.raises(CacheSizeError) as error:
        measured_budget(3072, 0, memory)
    assert str(error.value) == (
        "kv_cache_mem_mb=3072 does not fit: 4096 of 8192 MiB are free after loading the weights, "
        "and steps take 1025 MiB: set at most 3071, or lower max_batch_tokens_size or "
        "max_running_requests"
    )


def test_numbers_of_a_message_are_whole_mebibytes():
    memory = MeasuredMemory(24 * GIB, 20 * GIB, prompt_peak=5 * GIB + 1)
    assert f"{5 * GIB // MIB + 1} MiB of them" in measured_budget(None, 0, memory).source

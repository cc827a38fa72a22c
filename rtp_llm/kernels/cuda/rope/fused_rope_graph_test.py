# SPDX-License-Identifier: Apache-2.0
"""The fused RoPE operators in captured graphs, and that they wait for nothing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import compat
from rtp_llm.testing.fused_steps import MAX_TOKENS, Step, configs
from rtp_llm.testing.gpu import captured

BASE = compat.RopeSettings(compat.RopeStyle.Base, 64)
BATCH, STEPS = 8, 1000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, a copy from the device to the host is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def copy_of(step: Step) -> Step:
    return replace(step, cache=replace(step.cache, kv_cache_base=step.cache.kv_cache_base.clone()))


def shuffled_table(step: Step, batch: int) -> Tensor:
    """Other blocks for the live requests, none for the padded ones."""
    step.physical = step.physical[torch.randperm(BATCH)]
    table = step.table()
    table[batch:] = -1
    return table


def test_decode_replays_over_changing_tables_and_lengths() -> None:
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    operator = compat.FusedRopeKVCacheDecodeOp(step.config)
    params, qkv = operator.prepare(step.decode([1] * BATCH)), step.qkv(BATCH)
    replay, out = captured(lambda: operator.forward(qkv, step.cache, params))
    eager = copy_of(step)
    for index in range(STEPS):
        batch = index % BATCH + 1
        past = [random.randrange(MAX_TOKENS) for _ in range(batch)]
        table = {"kv_cache_kernel_block_id_device": shuffled_table(step, BATCH)[:batch]}
        inputs = step.decode(past, **table)
        qkv.copy_(step.qkv(BATCH))
        params.prepare_in_place(inputs)
        fresh = operator.prepare(inputs)
        replay()
        expected = operator.forward(qkv[:batch], eager.cache, fresh)
        assert torch.equal(out[:batch], expected)
        assert torch.equal(step.cache.kv_cache_base, eager.cache.kv_cache_base)


def test_prefill_replays_with_the_longest_query_and_prefix_apart() -> None:
    longest = 16
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    most = [MAX_TOKENS - longest] * BATCH
    params = operator.prepare(step.prefill([longest] * BATCH, most, is_s_padded=True))
    qkv = step.qkv(longest * BATCH)
    replay, out = captured(lambda: operator.forward(qkv, step.cache, params))
    eager = copy_of(step)
    for _ in range(STEPS // 5):
        new = [random.randint(0, longest) for _ in range(BATCH)]
        past = [random.randint(0, MAX_TOKENS - longest) for _ in range(BATCH)]
        table = {"kv_cache_kernel_block_id_device": shuffled_table(step, BATCH)}
        inputs = step.prefill(new, past, **table)
        fresh = operator.prepare(inputs)
        qkv.copy_(step.qkv(len(qkv)))
        params.prepare_in_place(inputs)
        replay()
        expected = operator.forward(qkv[: sum(new)].contiguous(), eager.cache, fresh)
        live = torch.arange(longest) < torch.tensor(new)[:, None]
        rows = out.view(BATCH, longest, *out.shape[1:])
        assert torch.equal(rows[live], expected)
        assert not rows[~live].any()
        assert torch.equal(step.cache.kv_cache_base, eager.cache.kv_cache_base)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "kind", [compat.FusedRopeKVCachePrefillOpQKVOut, compat.FusedRopeKVCachePrefillOpSplitOut]
)
def test_packed_prefill_replays_with_fewer_tokens(kind: type, stored: bool) -> None:
    """Requests of any length up to the captured one; rows past the last token are undefined."""
    longest = 16
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    operator = kind(step.config)
    params = operator.prepare(step.prefill([longest] * BATCH, [0] * BATCH))
    qkv = step.qkv(longest * BATCH)
    eager = copy_of(step)
    caches = (step.cache, eager.cache) if stored else (None, None)
    replay, out = captured(lambda: results_of(operator.forward(qkv, caches[0], params), stored))
    eager.cache.kv_cache_base.copy_(step.cache.kv_cache_base)
    for index in range(STEPS // 5):
        batch = index % BATCH + 1
        new = [random.randint(1, longest) for _ in range(batch)]
        table = {"kv_cache_kernel_block_id_device": shuffled_table(step, BATCH)[:batch]}
        inputs = step.prefill(new, [0] * batch, **table)
        qkv.copy_(step.qkv(len(qkv)))
        params.prepare_in_place(inputs)
        replay()
        fresh = operator.prepare(inputs)
        expected = operator.forward(qkv[: sum(new)].contiguous(), caches[1], fresh)
        for ours, theirs in zip(out, results_of(expected, stored), strict=True):
            assert torch.equal(ours[: sum(new)], theirs)
        assert torch.equal(step.cache.kv_cache_base, eager.cache.kv_cache_base)


def results_of(returned: Tensor | tuple[Tensor, ...], stored: bool) -> tuple[Tensor, ...]:
    """Those that are defined: keys and values apart are not where a cache has them."""
    if isinstance(returned, Tensor):
        return (returned,)
    return returned[:1] if stored else returned


def steps_of_every_kind(step: Step) -> Iterator[tuple[Any, compat.PyAttentionInputs, int]]:
    """Operator, a step of it, its rows."""
    prefill = step.prefill([5] * BATCH, [0] * BATCH)
    yield compat.FusedRopeKVCacheDecodeOp(step.config), step.decode([5] * BATCH), BATCH
    for kind in (
        compat.FusedRopeKVCachePrefillOpQOut,
        compat.FusedRopeKVCachePrefillOpQKVOut,
        compat.FusedRopeKVCachePrefillOpSplitOut,
    ):
        yield kind(step.config), prefill, 5 * BATCH
    lengths = [5, 1] * (BATCH // 2)
    padded = step.prefill(lengths, [3] * BATCH, is_s_padded=True)
    yield compat.FusedRopeKVCachePrefillOpQOut(step.config), padded, sum(lengths)


def test_nothing_waits_for_the_device() -> None:
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    qkv = step.qkv(5 * BATCH)
    for operator, inputs, rows in steps_of_every_kind(step):
        operator.forward(qkv[:rows], step.cache, operator.prepare(inputs))  # makes the table
        with no_waiting():
            params = operator.prepare(inputs)
            operator.forward(qkv[:rows], step.cache, params)
            params.prepare_in_place(inputs)


def test_forward_allocates_nothing() -> None:
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    qkv = step.qkv(5 * BATCH)
    for operator, inputs, rows in steps_of_every_kind(step):
        params = operator.prepare(inputs)
        operator.forward(qkv[:rows], step.cache, params)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        operator.forward(qkv[:rows], step.cache, params)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before

# SPDX-License-Identifier: Apache-2.0
"""A decode layer in a graph: rotation, cache write and attention over a pool full of poison."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from rtp_llm import compat, ops
from rtp_llm.testing.fused_steps import MAX_TOKENS, Step, configs
from rtp_llm.testing.gpu import captured

BASE = compat.RopeSettings(compat.RopeStyle.Base, 64)
BATCH, STEPS = 8, 1000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def layer(
    step: Step,
    operator: compat.FusedRopeKVCacheDecodeOp,
    params: compat.FusedRopeAttnParams,
    qkv: Tensor,
    table: Tensor,
) -> Tensor:
    """Queries of one token of each request over what its blocks hold."""
    q = operator.forward(qkv, step.cache, params)
    lengths = torch.where(table[:, 0] < 0, 0, params.sequence_lengths + 1).int()
    starts = torch.arange(len(q) + 1, dtype=torch.int32)
    cache = step.cache.kv_cache_base
    return ops.paged_attention(q, cache, starts, lengths, table.clamp(min=0), 1, MAX_TOKENS, 0.125)


def poisoned(step: Step, past: list[int]) -> Tensor:
    """A pool in which nothing but the tokens of the live requests is a number."""
    pool = torch.full_like(step.cache.kv_cache_base, torch.nan)
    size = step.config.tokens_per_block
    for request, tokens in enumerate(past):
        place = torch.arange(tokens)
        rows = step.physical[request, place // size]
        pool[:, rows, place % size] = torch.randn(2, tokens, *pool.shape[3:]).to(pool.dtype)
    return pool


def test_replays_equal_eager_and_never_read_a_stale_block() -> None:
    step = Step.random(configs(BASE), BATCH, torch.bfloat16)
    operator = compat.FusedRopeKVCacheDecodeOp(step.config)
    table, qkv = step.table(), step.qkv(BATCH)
    params = operator.prepare(step.decode([MAX_TOKENS - 1] * BATCH))
    replay, out = captured(lambda: layer(step, operator, params, qkv, table))
    cache, whole = step.cache.kv_cache_base, step.physical
    for index in range(STEPS):
        batch = index % BATCH + 1  # every number of live requests
        step.physical = whole[torch.randperm(BATCH)][:batch]
        past = [random.randrange(MAX_TOKENS) for _ in range(batch)]
        live = step.table()
        table.fill_(-1)
        table[:batch] = live
        qkv.copy_(step.qkv(BATCH))
        pool = poisoned(step, past)
        cache.copy_(pool)
        params.prepare_in_place(step.decode(past))
        replay()
        replayed, written = out[:batch].clone(), cache.clone()
        cache.copy_(pool)
        assert torch.equal(layer(step, operator, params, qkv, table)[:batch], replayed)
        assert torch.equal(written.view(torch.int16), cache.view(torch.int16))
        cache.copy_(pool)
        alone = operator.prepare(step.decode(past))
        expected = layer(step, operator, alone, qkv[:batch], live)
        assert not replayed.isnan().any()
        # Fewer requests may be cut into other parts, whose sums are rounded otherwise.
        torch.testing.assert_close(replayed, expected, rtol=1e-2, atol=1e-2)

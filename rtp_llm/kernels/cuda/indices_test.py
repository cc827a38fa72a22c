# SPDX-License-Identifier: Apache-2.0
"""Indices that are not there: the host cannot see them, so kernels skip them and touch nothing."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.testing.paged_batches import PagedBatch, Shape


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_embedding_of_an_unknown_id_is_zero() -> None:
    table = torch.randn(5, 24)
    out = ops.embedding(int32(4, -1, 5, 2**31 - 1, 0), table)
    assert torch.equal(out[[0, 4]], table[[4, 0]])
    assert not out[1:4].any()


def test_tokens_of_unknown_rows_stay_as_they_are() -> None:
    ids, least = int32(4, -1, -3, -4, -(2**31)), -(2**31)
    ops.substitute_tokens(ids, int32(7, 8, 9))
    assert ids.tolist() == [4, 7, 9, -4, least]


def test_histories_and_rows_that_are_not_there_are_left_alone() -> None:
    history, lens, drafts = int32(*[7] * 24).reshape(3, 8), int32(4, -2, 99), int32(*range(12))
    outputs, cu_rows = int32(-1, 3, 1, 2), int32(0, 3, 6, 8, 14)
    ops.match_ngrams(drafts, history, lens, outputs, cu_rows, 1, 2)
    assert drafts.tolist() == [-1, -1, 2, -1, -1, 5, -1, *range(7, 12)]
    sampled = int32(*[5] * 12)
    ops.append_accepted(history, lens, outputs, cu_rows, sampled, sampled)
    assert lens.tolist() == [4, 2, 99]
    assert history.tolist() == [[7] * 8, [5] * 2 + [7] * 6, [7] * 8]


def test_rows_of_drafts_that_are_not_there_are_left_alone() -> None:
    tokens, drafts, rejected = int32(1, 2, 3, 4), int32(1, 9, 3, 9), int32(*[7] * 5)
    last = ops.accept_drafts(tokens, rejected, drafts, int32(-1, 2, 1, 3, 6), True)
    assert last.tolist() == [1, 0, 1, 3]
    assert tokens.tolist() == [1, 2, 2, 4]
    assert rejected.tolist() == [7, 7, 1, 7, 7]


def test_tokens_and_rows_that_are_not_there_are_not_corrected() -> None:
    positions, lens, slots = int32(5, 6, 7), int32(6, 9, 8), int32(5, 6, 7).reshape(1, 3)
    tables, cu = torch.zeros(1, 3, 1, dtype=torch.int32), int32(0, 1, 9, 12)
    ops.correct_positions(positions, lens, slots, tables, cu, int32(1, 2), int32(0, 1, 2), 8)
    assert lens.tolist() == [5, 7, 8]
    assert positions.tolist() == [4, 6, 7]
    assert slots.tolist() == [[4, 6, 7]]


def test_pairs_of_unknown_blocks_are_skipped() -> None:
    cache = torch.randn(2, 2, 4, 2, 1, 8)
    expected = cache.clone()
    expected[:, :, 2] = cache[:, :, 1]
    ops.copy_blocks(cache, int32(-1, 0, 1, 2, 0, 4, 4, 3).reshape(4, 2))
    assert torch.equal(cache, expected)


def test_tokens_of_unknown_positions_and_slots_are_left_alone() -> None:
    qkv, table = torch.randn(6, 4 * 16), torch.randn(10, 16)
    cache = torch.zeros(2, 3, 4, 1, 16)
    positions, slots = int32(0, -1, 10, 3, 4, 5), int32(0, 1, 2, -1, 12, 11)
    rotated = qkv.clone()
    ops.rope_kv_write(rotated, positions, table, cache, slots, 2, 1, 16, True)
    assert torch.equal(rotated[1:3], qkv[1:3])
    assert not torch.equal(rotated[3:5, :32], qkv[3:5, :32])
    stored = cache.flatten(1, 2)
    assert torch.equal(stored[0, [0, 11], 0], rotated[[0, 5], 32:48])
    assert not stored[:, 1:11].any()


def test_attention_reads_no_unknown_block_and_no_more_than_the_table_has() -> None:
    batch = PagedBatch.random([(2, 60), (1, 60)], Shape(), torch.float32)
    q, cache, cu, lens, table, *rest = batch.arguments()
    gone = table.clone()
    gone[:, 1] = -1
    expected = paged_attention_reference(q, cache, cu, lens, gone, *rest)
    for unknown in (cache.shape[1], 2**31 - 1, -(2**31)):
        bad = table.clone()
        bad[:, 1] = unknown
        actual = ops.paged_attention(q, cache, cu, lens, bad, *rest)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    short = table[:, :2].contiguous()
    actual = ops.paged_attention(q, cache, cu, lens, short, *rest)
    whole = ops.paged_attention(q, cache, cu, lens.clamp(max=32), short, *rest)
    assert torch.equal(actual, whole)


def test_edits_of_unknown_rows_and_offsets_are_ignored() -> None:
    logits = torch.randn(2, 8)
    before, one, far = logits.clone(), torch.ones(2), torch.tensor([-(2**40), 2**40])
    ops.apply_token_bitmask(logits, int32(0, 0).view(2, 1), int32(-1, 2))
    ops.add_logit_bias(logits, int32(-1, 2, 0), int32(0, 0, 8), torch.ones(3))
    ops.apply_penalties(logits, int32(1, 2), int32(5, 9, 3), far, one, one, one)
    ops.ban_repeated_ngrams(logits, int32(1, 2), int32(-4, -2, -9), int32(1, 1))
    assert torch.equal(logits, before)

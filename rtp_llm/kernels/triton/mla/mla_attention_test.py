# SPDX-License-Identifier: Apache-2.0
"""Latent attention in Triton against the references in float64, on caches where all else is NaN."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.ops.mla.mla_reference import mla_attention_reference
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.paged_batches import PagedBatch, Shape

pytest.importorskip("triton")
from rtp_llm.kernels.triton.mla.mla_attention import (
    LatentTile,
    choose_latent_tile,
    expanded_attention,
    mla_attention,
)
from rtp_llm.kernels.triton.processors import Processors

TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# Decode, chunk, prefill, no query, no key, more queries than a tile, parts of the keys.
MIXED = [(1, 1), (1, 17), (0, 9), (1, 0), (33, 33), (70, 90), (1, 400), (3, 300)]
DECODE = [(1, 1), (1, 17), (0, 9), (1, 0), (1, 1000), (0, 0), (1, 333)]
HOPPER = Processors(132, 227 << 10)

every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
every_batch = pytest.mark.parametrize("lengths", [MIXED, DECODE], ids=["mixed", "decode"])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def latents(
    lengths: list[tuple[int, int]],
    heads: int,
    latent: int,
    rope: int,
    dtype: torch.dtype,
    block: int = 16,
) -> list[Any]:
    """Arguments of mla_attention."""
    q, planes, cu, keys, table, *most, _ = PagedBatch.random(
        lengths, Shape(heads, 1, latent + rope, block), dtype
    ).arguments()
    scale = (latent + rope) ** -0.5
    return [q, planes[0, :, :, 0], cu, keys, table, latent, *most, scale]


def check(arguments: list[Any], tile: LatentTile | None = None) -> None:
    actual = mla_attention(*arguments, tile=tile)
    q, cache, *rest = arguments
    expected = mla_attention_reference(q.double(), cache.double(), *rest)
    limit = TOLERANCES[q.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@every_dtype
@every_batch
@pytest.mark.parametrize("heads", [1, 7, 16, 70, 128])
def test_numbers_of_heads(dtype: torch.dtype, lengths: list[tuple[int, int]], heads: int) -> None:
    check(latents(lengths, heads, 64, 16, dtype))


@every_batch
@pytest.mark.parametrize(
    ("latent", "rope", "block"), [(512, 64, 64), (33, 10, 5), (128, 32, 1), (512, 64, 16)]
)
def test_sizes(lengths: list[tuple[int, int]], latent: int, rope: int, block: int) -> None:
    check(latents(lengths, 16, latent, rope, torch.bfloat16, block))


@every_batch
@pytest.mark.parametrize("splits", [2, 16])
def test_split_keys(lengths: list[tuple[int, int]], splits: int) -> None:
    if lengths is MIXED:
        lengths = lengths[:4]
    check(latents(lengths, 40, 64, 16, torch.bfloat16), LatentTile(64, 32, 4, 1, splits))


def expanded(
    lengths: list[tuple[int, int]], heads: int, nope: int, rope: int, value: int, dtype: torch.dtype
) -> tuple[list[Any], Tensor]:
    """Arguments of expanded_attention, and what it should give in float64."""
    size, gap = nope + rope, 64
    room = [-(-keys // gap) * gap for _, keys in lengths]
    starts = torch.tensor([0, *accumulate(room)], dtype=torch.int32)
    keys = torch.full((sum(room), rope), torch.nan, dtype=dtype)
    own = torch.full((sum(room), heads, nope + value), torch.nan, dtype=dtype)
    wide = max(size, value)
    cache = torch.zeros(2, sum(room), 1, heads, wide, dtype=torch.float64)
    table = torch.full((len(lengths), max(room)), -1, dtype=torch.int32)
    for b, (_, count) in enumerate(lengths):
        first = int(starts[b])
        rows = slice(first, first + count)
        keys[rows] = torch.randn(count, rope).to(dtype)
        own[rows] = torch.randn(count, heads, nope + value).to(dtype)
        cache[0, rows, 0, :, :nope] = own[rows, :, :nope].double()
        cache[0, rows, 0, :, nope:size] = keys[rows, None].double()
        cache[1, rows, 0, :, :value] = own[rows, :, nope:].double()
        table[b, :count] = torch.arange(first, first + count)
    q = torch.randn(sum(n for n, _ in lengths), heads, size).to(dtype)
    cu = torch.tensor([0, *accumulate(n for n, _ in lengths)], dtype=torch.int32)
    seq_lens = torch.tensor([count for _, count in lengths], dtype=torch.int32)
    scale = size**-0.5
    padded = torch.nn.functional.pad(q.double(), (0, wide - size))
    most = max(n for n, _ in lengths), max(room)
    expected = paged_attention_reference(padded, cache, cu, seq_lens, table, *most, scale)
    return [q, keys, own, cu, seq_lens, starts[:-1], value, scale], expected[..., :value]


@every_dtype
@pytest.mark.parametrize(
    ("heads", "nope", "rope", "value"), [(3, 24, 16, 20), (2, 128, 64, 128), (1, 8, 6, 48)]
)
def test_expanded_heads(dtype: torch.dtype, heads: int, nope: int, rope: int, value: int) -> None:
    arguments, expected = expanded(MIXED, heads, nope, rope, value, dtype)
    limit = TOLERANCES[dtype]
    actual = expanded_attention(*arguments)
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


def test_tokens_past_the_last_sequence_become_zeros() -> None:
    for lengths in (MIXED, DECODE):
        q, *rest = latents(lengths, 16, 64, 16, torch.bfloat16)
        longer = torch.cat([q, torch.full_like(q[:2], torch.nan)])
        actual = mla_attention(longer, *rest)
        # As many tokens as sequences are a decode, whose tile is another one.
        alone = mla_attention(q, *rest)
        torch.testing.assert_close(actual[:-2], alone, rtol=1.6e-2, atol=1.6e-2)
        assert not actual[-2:].any()


def test_nothing_to_do() -> None:
    assert mla_attention(*latents([], 4, 64, 16, torch.bfloat16)).shape == (0, 4, 64)


def test_replay_reads_new_lengths_and_blocks() -> None:
    """What a captured graph is for: the same tensors with other numbers in them."""
    arguments = latents([(1, 900), (1, 700), (1, 5)], 16, 64, 16, torch.bfloat16)
    replay, out = captured(lambda: mla_attention(*arguments))
    for keys in ((1, 2, 3), (900, 1, 5), (17, 699, 4)):
        arguments[3].copy_(torch.tensor(keys, dtype=torch.int32))
        arguments[0].normal_()
        replay()
        q, cache, *rest = arguments
        expected = mla_attention_reference(q.double(), cache.double(), *rest)
        torch.testing.assert_close(out.double(), expected, rtol=1.6e-2, atol=1.6e-2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, cache, *rest = latents([(1, 5)], 4, 64, 16, torch.bfloat16)
    with pytest.raises(ValueError, match="both must be the same"):
        mla_attention(q.half(), cache, *rest)
    with pytest.raises(ValueError, match="the cache"):
        mla_attention(q[..., 1:], cache, *rest)


def test_few_rows_are_split_and_many_are_not() -> None:
    alone = choose_latent_tile(1, 128, 65536, True, 2, HOPPER)
    many = choose_latent_tile(256, 128, 65536, True, 2, HOPPER)
    prompt = choose_latent_tile(256, 128, 65536, False, 2, HOPPER)
    assert (alone.splits, many.splits, prompt.splits) == (64, 1, 1)
    few = choose_latent_tile(16, 16, 8192, True, 2, HOPPER)
    smaller = choose_latent_tile(16, 16, 8192, True, 2, Processors(108, 164 << 10))
    assert (few.rows, few.keys, few.splits, smaller.keys) == (16, 128, 8, 64)

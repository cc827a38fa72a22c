# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton against the reference in float64, on caches where all else is NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.paged_batches import PagedBatch, Shape

pytest.importorskip("triton")
from rtp_llm.kernels.triton.attention.paged_attention import (
    Tile,
    choose_tile,
    paged_attention,
    prompt_tiles,
)
from rtp_llm.kernels.triton.attention.paged_attention_kernel import attention_kernel

TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# Decode, chunk, prefill, no query, no key, more queries than a tile, parts of the keys.
MIXED = [(1, 1), (1, 17), (0, 9), (1, 0), (33, 33), (70, 90), (1, 400), (3, 300)]
DECODE = [(1, 1), (1, 17), (0, 9), (1, 0), (1, 1000), (0, 0), (1, 333)]
SPLIT = Tile(16, 16, 4, 2, 8)

every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
every_batch = pytest.mark.parametrize("lengths", [MIXED, DECODE], ids=["mixed", "decode"])
either_split = pytest.mark.parametrize("tile", [None, SPLIT], ids=["chosen", "split"])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_right(batch: PagedBatch, tile: Tile | None = None, **options: Any) -> None:
    actual = paged_attention(*batch.arguments(), tile=tile, **options)
    expected = batch.expected(**options)
    limit = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@every_dtype
@every_batch
@either_split
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (7, 1), (9, 3)])
def test_groups_of_heads(
    dtype: torch.dtype, lengths: list[tuple[int, int]], tile: Tile | None, heads: tuple[int, int]
) -> None:
    assert_right(PagedBatch.random(lengths, Shape(*heads), dtype), tile)


@every_batch
@pytest.mark.parametrize("head_dim", [7, 64, 80, 128, 256])
def test_head_sizes(lengths: list[tuple[int, int]], head_dim: int) -> None:
    assert_right(PagedBatch.random(lengths, Shape(4, 2, head_dim), torch.bfloat16))


@every_dtype
@every_batch
@either_split
def test_heads_of_qwen3_next(
    dtype: torch.dtype, lengths: list[tuple[int, int]], tile: Tile | None
) -> None:
    assert_right(PagedBatch.random(lengths, Shape(16, 2, 256), dtype), tile)


@every_batch
@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 100])
def test_block_sizes(lengths: list[tuple[int, int]], block_size: int) -> None:
    assert_right(PagedBatch.random(lengths, Shape(block_size=block_size), torch.float16))


@every_batch
@either_split
@pytest.mark.parametrize(
    "options",
    [
        {"window": 9},
        {"window": 100},
        {"window": 9, "causal": False},
        {"causal": False},
        {"soft_cap": 5.0},
        {"sinks": True},
        {"window": 50, "soft_cap": 5.0, "sinks": True},
    ],
    ids=str,
)
def test_options(
    lengths: list[tuple[int, int]], tile: Tile | None, options: dict[str, Any]
) -> None:
    if "sinks" in options:
        options = {**options, "sinks": torch.randn(4)}
    assert_right(PagedBatch.random(lengths, Shape(), torch.bfloat16), tile, **options)


@every_batch
@either_split
@pytest.mark.parametrize("options", [{}, {"window": 50, "soft_cap": 5.0, "sinks": True}], ids=str)
def test_cache_of_eight_bits(
    lengths: list[tuple[int, int]], tile: Tile | None, options: dict[str, Any]
) -> None:
    if "sinks" in options:
        options = {**options, "sinks": torch.randn(4)}
    q, cache, *rest = PagedBatch.random(lengths, Shape(), torch.bfloat16).arguments()
    scales = torch.tensor([0.5]), torch.tensor([2.0])
    divisor = torch.stack(scales).view(2, 1, 1, 1, 1)
    small = (cache.float() / divisor).to(torch.float8_e4m3fn)
    actual = paged_attention(
        q, small, *rest, k_scale=scales[0], v_scale=scales[1], tile=tile, **options
    )
    wide = small.double() * divisor.double()
    expected = paged_attention_reference(q.double(), wide, *rest, **options)
    torch.testing.assert_close(actual.double(), expected, rtol=1.6e-2, atol=1.6e-2)


def test_serving_compiles_nothing_after_the_first_steps() -> None:
    """Counts that are 1 or divisible by 16 and numbers without alignment are no new variants."""

    def run(lengths: list[tuple[int, int]], shift: int = 0) -> None:
        q, cache, cu, keys, table, *rest = PagedBatch.random(
            lengths, Shape(), torch.bfloat16
        ).arguments()
        moved = [torch.cat([x.new_zeros(shift), x])[shift:] for x in (cu, keys)]
        paged_attention(q, cache, *moved, table, *rest)

    run([(90, 90)])
    run([(3, 30)])
    compiled = attention_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(compiled)
    run([(64, 64)])
    run([(1, 1), (160, 160)], shift=1)
    run([(100, 1000)] * 16, shift=3)
    run([(2, 40), (1, 5)])
    assert len(compiled) == before


@either_split
def test_tokens_past_the_last_sequence_become_zeros(tile: Tile | None) -> None:
    for lengths in (MIXED, DECODE):
        batch = PagedBatch.random(lengths, Shape(), torch.bfloat16)
        q, *rest = batch.arguments()
        longer = torch.cat([q, torch.full_like(q[:2], torch.nan)])
        actual = paged_attention(longer, *rest, tile=tile)
        assert torch.equal(actual[:-2], paged_attention(q, *rest, tile=tile))
        assert not actual[-2:].any()


def test_nothing_to_do() -> None:
    batch = PagedBatch.random([], Shape(), torch.bfloat16)
    assert paged_attention(*batch.arguments()).shape == (0, 4, 64)


def test_replay_reads_new_lengths_and_blocks() -> None:
    """What a captured graph is for: the same tensors with other numbers in them."""
    batch = PagedBatch.random([(1, 900), (1, 700), (1, 5)], Shape(), torch.bfloat16)
    arguments = batch.arguments()
    replay, out = captured(lambda: paged_attention(*arguments))
    for keys in ((1, 2, 3), (900, 1, 5), (17, 699, 4)):
        arguments[3].copy_(torch.tensor(keys, dtype=torch.int32))
        arguments[0].normal_()
        replay()
        q, cache, *rest = arguments
        expected = paged_attention_reference(q.double(), cache.double(), *rest)
        torch.testing.assert_close(out.double(), expected, rtol=1.6e-2, atol=1.6e-2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, cache, *rest = PagedBatch.random([(1, 5)], Shape(), torch.bfloat16).arguments()
    with pytest.raises(ValueError, match="both must be the same"):
        paged_attention(q.half(), cache, *rest)
    with pytest.raises(ValueError, match="do not fit"):
        paged_attention(q[:, :3], cache, *rest)
    with pytest.raises(ValueError, match="int32"):
        paged_attention(q, cache, *(x.long() if torch.is_tensor(x) else x for x in rest))


def test_few_rows_are_split_and_many_are_not() -> None:
    shape = {"group": 2, "kv_heads": 8, "head": 128, "element_size": 2, "multiprocessors": 132}
    alone = choose_tile(1, max_seqlen_q=1, max_seqlen_k=65536, **shape)
    many = choose_tile(256, max_seqlen_q=1, max_seqlen_k=65536, **shape)
    prompt = choose_tile(1, max_seqlen_q=4096, max_seqlen_k=4096, **shape)
    assert (alone.splits, many.splits, prompt.splits) == (32, 1, 1)
    assert alone.rows < prompt.rows


def test_prompts_have_few_tiles() -> None:
    """What is compiled before the first request is what serving asks for."""
    known = prompt_tiles(2, 128, 2)
    for sequences in (1, 3, 40, 256):
        for queries in (2, 5, 32, 33, 1000):
            for keys in (queries, 5000, 70000):
                tile = choose_tile(sequences, 2, 8, 128, queries, keys, 2, 132)
                assert tile in known

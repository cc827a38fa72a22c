# SPDX-License-Identifier: Apache-2.0
"""Paged attention against its reference in float64, on caches where all else is NaN."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, ISAS, cpu_only, kernel_runs, running
from rtp_llm.testing.paged_batches import PagedBatch, Shape

# Weights of bfloat16 are rounded before they meet the values, as the values are.
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# Decode, chunk, prefill, no query, no key, more queries than a tile, parts of the keys.
MIXED = [(1, 1), (1, 17), (0, 9), (1, 0), (33, 33), (70, 90), (1, 400), (3, 300)]

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_right(batch: PagedBatch, **options: Any) -> None:
    with kernel_runs("paged_attention"):
        actual = batch.run(**options)
    assert actual.dtype == batch.q.dtype
    assert actual.is_contiguous()
    limit = TOLERANCES[actual.dtype]
    expected = batch.expected(**options)
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@every_isa
@every_dtype
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (7, 1), (9, 3), (20, 1), (70, 1)])
def test_groups_of_heads(isa: str, dtype: torch.dtype, heads: tuple[int, int]) -> None:
    with running(isa):
        assert_right(PagedBatch.random(MIXED, Shape(*heads, head_dim=32), dtype))


@every_isa
@every_dtype
@pytest.mark.parametrize("head_dim", [1, 7, 33, 64, 80, 128])
def test_head_sizes(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    for heads in ((3, 3), (4, 1)):
        with running(isa):
            assert_right(PagedBatch.random(MIXED[:6], Shape(*heads, head_dim), dtype))


@every_isa
@every_dtype
def test_heads_of_qwen3_next(isa: str, dtype: torch.dtype) -> None:
    with running(isa):
        assert_right(PagedBatch.random(MIXED, Shape(16, 2, 256), dtype))


@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 100])
def test_block_sizes(block_size: int) -> None:
    assert_right(PagedBatch.random(MIXED, Shape(block_size=block_size), torch.float32))


OPTIONS = [
    {"causal": causal, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    for causal, window, soft_cap, sinks in itertools.product(
        (True, False), (0, 1, 40), (0.0, 3.0), (False, True)
    )
]


@every_isa
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_together(isa: str, options: dict[str, Any]) -> None:
    sinks = torch.randn(4) if options["sinks"] else None
    with running(isa):
        for dtype in (torch.float32, torch.bfloat16):
            batch = PagedBatch.random(MIXED, Shape(head_dim=16), dtype)
            assert_right(batch, **(options | {"sinks": sinks}))


@pytest.mark.parametrize("lengths", [(700, 1500), (1, 1500), (20, 1500)])
def test_window_without_causality_sees_all_later_keys(lengths: tuple[int, int]) -> None:
    batch = PagedBatch.random([lengths], Shape(6, 3, 16), torch.float32)
    assert_right(batch, causal=False, window=100)


@every_dtype
@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 64, 100])
def test_chunks_equal_one_prefill(dtype: torch.dtype, chunk: int) -> None:
    batch = PagedBatch.random([(161, 161)], Shape(), dtype)
    whole = batch.run()
    parts = []
    for first in range(0, 161, chunk):
        last = min(first + chunk, 161)
        part = replace(batch, q=batch.q[first:last], lengths=((last - first, last),))
        parts.append(part.run())
    limit = TOLERANCES[dtype]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=limit, atol=limit)


@cpu_only
def test_sequence_does_not_depend_on_its_batch_or_threads() -> None:
    lengths = [(1, 2000), (40, 300), (1, 5), (1, 700)]
    batch = PagedBatch.random(lengths, Shape(), torch.float32)
    together = batch.run()
    starts = [0, *itertools.accumulate(queries for queries, _ in lengths)]
    threads = torch.get_num_threads()
    for b, (queries, _) in enumerate(lengths):
        rows = slice(starts[b], starts[b] + queries)
        alone = replace(
            batch, q=batch.q[rows], lengths=(lengths[b],), block_table=batch.block_table[b : b + 1]
        )
        torch.set_num_threads(1)
        try:
            assert torch.equal(alone.run(), together[rows])
        finally:
            torch.set_num_threads(threads)


@every_isa
def test_blocks_outside_the_window_may_be_gone(isa: str) -> None:
    batch = PagedBatch.random([(1, 400), (30, 300)], Shape(), torch.float32)
    expected = batch.expected(window=50)
    # The first query of the second sequence stands at 270 and sees keys from 221 on.
    batch.block_table[0, : 350 // 16] = -1
    batch.block_table[1, : 221 // 16] = -1
    with running(isa):
        actual = batch.run(window=50)
    torch.testing.assert_close(actual.double(), expected, rtol=4e-6, atol=4e-6)


@every_isa
@pytest.mark.parametrize("queries", [1, 40])
def test_null_blocks_between_others_are_never_read(isa: str, queries: int) -> None:
    batch = PagedBatch.random([(queries, 200)], Shape(), torch.float32)
    batch.block_table[0, 3] = -1
    batch.block_table[0, 7] = -1
    with running(isa):
        assert_right(batch)
        assert_right(batch, causal=False, window=60)


@every_isa
def test_query_without_keys_and_padding_are_zero(isa: str) -> None:
    batch = PagedBatch.random([(1, 0), (4, 2)], Shape(), torch.float32)
    padded = replace(batch, q=torch.cat((batch.q, batch.q)))
    with running(isa):
        out = padded.run(sinks=torch.zeros(4))
    assert torch.equal(out[0], torch.zeros(4, 64))
    assert torch.equal(out[1:3], torch.zeros(2, 4, 64))
    assert torch.equal(out[5:], torch.zeros(5, 4, 64))
    assert out[3:5].abs().sum() > 0


def test_nothing_at_all() -> None:
    empty = PagedBatch.random([], Shape(), torch.float32)
    assert empty.run().shape == (0, 4, 64)
    no_query = PagedBatch.random([(0, 30), (0, 0)], Shape(), torch.float32)
    assert no_query.run().shape == (0, 4, 64)


def test_reference_equals_torch() -> None:
    batch = PagedBatch.random([(50, 50)], Shape(8, 8, 32), torch.float32)
    k, v = rows_of(batch, 50)
    q = batch.q.transpose(0, 1)
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
    actual = paged_attention_reference(*batch.arguments())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def rows_of(batch: PagedBatch, keys: int) -> tuple[Tensor, Tensor]:
    blocks = batch.block_table[0, : -(-keys // 16)].long()
    k, v = batch.kv_cache[:, blocks].flatten(1, 2)[:, :keys].transpose(1, 2)
    return k, v


def test_large_scores_do_not_overflow() -> None:
    batch = PagedBatch.random([(3, 60)], Shape(), torch.float32)
    assert_right(replace(batch, q=batch.q * 1e3))


def test_nan_stays() -> None:
    batch = PagedBatch.random([(2, 20), (1, 20)], Shape(), torch.float32)
    batch.q[1, 0, 0] = torch.nan
    out = batch.run()
    assert out[1, 0].isnan().all()
    assert not out[[0, 2]].isnan().any()


def test_meta_function_gives_shape_and_dtype() -> None:
    batch = PagedBatch.random([(3, 20)], Shape(), torch.bfloat16)
    q, cache, cu, lens, table, *rest = batch.arguments()
    meta = [x.to("meta") for x in (q, cache, cu, lens, table)]
    out = ops.paged_attention(*meta, *rest)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)


def wrong(message: str, **changes: Any) -> Any:
    return pytest.param(changes, message, id=message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        wrong("kv_cache", kv_cache=torch.randn(2, 4, 16, 3, 64)),
        wrong("kv_cache", kv_cache=torch.randn(2, 4, 16, 2, 64, dtype=torch.float64)),
        wrong("block_table", block_table=torch.zeros(1, 4, dtype=torch.int64)),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    batch = PagedBatch.random([(3, 20)], Shape(), torch.float32)
    with pytest.raises(RuntimeError, match=message):
        replace(batch, **changes).run()


@cpu_only
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        wrong("block 99 of a cache", block_table=torch.full((1, 4), 99, dtype=torch.int32)),
        wrong("cu_seqlens_q ends with 3", q=torch.randn(2, 4, 64)),
        wrong("seq_lens", lengths=((3, 1000),)),
    ],
)
def test_lengths_and_blocks_that_are_not_there_are_named(
    changes: dict[str, Any], message: str
) -> None:
    batch = PagedBatch.random([(3, 20)], Shape(), torch.float32)
    with pytest.raises(RuntimeError, match=message):
        replace(batch, **changes).run()

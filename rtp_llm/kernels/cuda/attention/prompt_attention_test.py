# SPDX-License-Identifier: Apache-2.0
"""The kernel for prompts on Hopper against the reference in float64: what only it has to get right.

The tests of the operator, rtp_llm/ops/attention/paged_attention_test.py, run on the GPU too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.paged_batches import PagedBatch, Shape

# Decode, chunk, prefill, no query, no key, more rows than a tile, whole tiles, many tiles of keys.
MIXED = [(1, 1), (1, 17), (0, 9), (1, 0), (33, 33), (70, 90), (129, 400), (3, 300), (64, 1000)]
TOLERANCES = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}

every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_right(batch: PagedBatch, **options: Any) -> None:
    actual, limit = batch.run(**options), TOLERANCES[batch.q.dtype]
    expected = batch.expected(**options)
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@every_dtype
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (16, 8), (7, 1), (9, 3), (71, 1)])
def test_groups_of_heads(dtype: torch.dtype, head_dim: int, heads: tuple[int, int]) -> None:
    assert_right(PagedBatch.random(MIXED, Shape(*heads, head_dim), dtype))


@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_block_sizes(block_size: int, head_dim: int) -> None:
    shape = Shape(head_dim=head_dim, block_size=block_size)
    assert_right(PagedBatch.random(MIXED, shape, torch.bfloat16))


@every_dtype
@pytest.mark.parametrize(
    "options",
    [
        {"window": 9},
        {"window": 100},
        {"window": 9, "causal": False},
        {"causal": False},
        {"soft_cap": 5.0},
        {"sinks": True},
        {"window": 200, "soft_cap": 5.0, "sinks": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [128, 256])
def test_options(dtype: torch.dtype, options: dict[str, Any], head_dim: int) -> None:
    if "sinks" in options:
        options = {**options, "sinks": torch.randn(4)}
    assert_right(PagedBatch.random(MIXED, Shape(head_dim=head_dim), dtype), **options)


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("page", [16, 128])
def test_keys_without_a_block_are_hidden(page: int, head_dim: int) -> None:
    shape = Shape(head_dim=head_dim, block_size=page)
    batch = PagedBatch.random([(40, 900), (130, 700)], shape, torch.bfloat16)
    for row, block in ((0, 0), (0, 3), (1, 1), (1, 4)):
        batch.block_table[row, block] = -1
    assert_right(batch)
    assert_right(batch, window=300)


def test_tokens_past_the_last_sequence_become_zeros() -> None:
    q, *rest = PagedBatch.random(MIXED, Shape(), torch.bfloat16).arguments()
    longer = torch.cat([q, torch.full((70, *q.shape[1:]), torch.nan, dtype=q.dtype)])
    actual = ops.paged_attention(longer, *rest)
    assert torch.equal(actual[: len(q)], ops.paged_attention(q, *rest))
    assert not actual[len(q) :].any()


@pytest.mark.parametrize("shape", [Shape(8, 2, 128), Shape(16, 2, 256)])
def test_a_long_prompt_and_its_replays(shape: Shape) -> None:
    batch = PagedBatch.random([(2500, 3000), (1, 2000)], shape, torch.bfloat16)
    assert_right(batch)
    arguments = batch.arguments()  # made of numbers of the host, which a graph cannot record
    replay, out = captured(lambda: ops.paged_attention(*arguments))
    batch.q.normal_()
    replay()
    torch.testing.assert_close(out.double(), batch.expected(), rtol=1.6e-2, atol=1.6e-2)

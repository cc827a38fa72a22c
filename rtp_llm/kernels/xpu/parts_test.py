# SPDX-License-Identifier: Apache-2.0
"""Paged attention with keys cut into parts: no sequence has many queries, some have many keys."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from rtp_llm.testing.operator_checks import FLOAT_DTYPES, kernel_runs
from rtp_llm.testing.paged_batches import PagedBatch, Shape
from rtp_llm.testing.xpu import bridge  # noqa: F401 (loads the bridge)

TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# At the borders of parts of 512 keys, without keys, without queries; at most 16 queries.
DECODE = [(1, 1500), (1, 1), (0, 700), (4, 513), (1, 512), (16, 1025), (1, 0)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_right(batch: PagedBatch, **options: Any) -> None:
    with kernel_runs("paged_attention"):
        actual = batch.run(**options)
    limit = TOLERANCES[actual.dtype]
    expected = batch.expected(**options)
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (7, 1), (9, 3), (20, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [7, 80, 256])
def test_heads(dtype: torch.dtype, heads: tuple[int, int], head_dim: int) -> None:
    assert_right(PagedBatch.random(DECODE, Shape(*heads, head_dim), dtype))


OPTIONS = [
    {"causal": causal, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    for causal, window, soft_cap, sinks in itertools.product(
        (True, False), (0, 40, 600), (0.0, 3.0), (False, True)
    )
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_together(options: dict[str, Any]) -> None:
    sinks = torch.randn(4) if options["sinks"] else None
    batch = PagedBatch.random(DECODE, Shape(head_dim=16), torch.float32)
    assert_right(batch, **(options | {"sinks": sinks}))


def test_a_sequence_does_not_depend_on_its_batch() -> None:
    batch = PagedBatch.random(DECODE, Shape(), torch.float32)
    together = batch.run()
    first = 0
    for b, (queries, keys) in enumerate(DECODE):
        rows = slice(first, first + queries)
        first += queries
        # Batched with a longer one, which alone decides how many parts there are.
        alone = replace(
            batch,
            q=torch.cat((batch.q[rows], batch.q[:1])),
            lengths=((queries, keys), (1, 1500)),
            block_table=batch.block_table[[b, 0]],
        )
        assert torch.equal(alone.run()[:-1], together[rows])


def test_blocks_outside_the_window_may_be_gone() -> None:
    batch = PagedBatch.random([(1, 1400), (3, 900)], Shape(), torch.float32)
    expected = batch.expected(window=50)
    batch.block_table[0, : 1350 // 16] = -1
    batch.block_table[1, : 847 // 16] = -1
    actual = batch.run(window=50)
    torch.testing.assert_close(actual.double(), expected, rtol=4e-6, atol=4e-6)


def test_queries_without_keys_and_padding_are_zero() -> None:
    batch = PagedBatch.random([(1, 0), (4, 700)], Shape(), torch.float32)
    out = replace(batch, q=torch.cat((batch.q, batch.q))).run(sinks=torch.zeros(4))
    assert torch.equal(out[0], torch.zeros(4, 64))
    assert torch.equal(out[5:], torch.zeros(5, 4, 64))
    assert out[1:5].abs().sum() > 0

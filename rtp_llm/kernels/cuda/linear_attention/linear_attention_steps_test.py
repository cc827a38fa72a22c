# SPDX-License-Identifier: Apache-2.0
"""Linear attention on the GPU: mixed batches, replays of graphs, indices that are not there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.linear_attention.linear_attention_reference import (
    causal_conv1d_reference,
    gated_delta_rule_reference,
)
from rtp_llm.ops.registry import operator
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.linear_attention_batches import (
    BLOCKS,
    DeltaBatch,
    DeltaShape,
    copies,
    random_counts,
)
from rtp_llm.testing.operator_checks import kernel_runs

SHAPES = (
    DeltaShape(2, 4, 128, 128, torch.bfloat16),
    DeltaShape(1, 3, 40, 24, torch.float16, torch.bfloat16),
    DeltaShape(2, 2, 136, 72, torch.float32),
    DeltaShape(2, 4, 128, 128, torch.float32),
)
LIMITS = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}

Operator = Callable[..., Tensor]
RULE: tuple[Operator, Operator] = (ops.gated_delta_rule, gated_delta_rule_reference)
CONV: tuple[Operator, Operator] = (ops.causal_conv1d, causal_conv1d_reference)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def check(pair: tuple[Operator, Operator], arguments: Sequence[Any], limit: float) -> None:
    """Results and every byte of the memory, what is written and what is not."""
    expected_arguments = copies(arguments)
    with torch.device("cpu"):
        expected = pair[1](*expected_arguments)
    actual = pair[0](*arguments)
    torch.testing.assert_close(actual.cpu(), expected, rtol=limit, atol=limit)
    for mine, theirs in zip(arguments, expected_arguments, strict=True):
        if isinstance(mine, Tensor):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=limit, atol=limit, equal_nan=True)


def limit_of(shape: DeltaShape) -> float:
    return max(LIMITS[shape.dtype], LIMITS[shape.state_dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_mixed_batches(shape: DeltaShape) -> None:
    for _ in range(50):
        batch = DeltaBatch.random(shape, random_counts())
        check(RULE, batch.rule(), limit_of(shape))
        check(CONV, batch.conv(), LIMITS[shape.dtype] / 2)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("counts", [(1024,), (2047, 3, 130), (1, 4100, 0, 37)], ids=str)
def test_convolution_of_long_prompts(counts: tuple[int, ...], dtype: torch.dtype) -> None:
    for padding in (0, 2, 70):
        batch = DeltaBatch.random(DeltaShape(1, 3, 40, 24, dtype), counts, padding)
        check(CONV, batch.conv(), LIMITS[dtype] / 2)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most", [1, 2, 4, 5, 8])
def test_small_steps_use_no_dead_place_of_a_ring(most: int, state_dtype: torch.dtype) -> None:
    shape = DeltaShape(2, 4, 128, 128, torch.bfloat16, state_dtype)
    for _ in range(10):
        counts = [random.choice((0, 1, most, most)) for _ in range(random.randint(1, 8))]
        batch = DeltaBatch.random(shape, counts, most=most)
        batch.spoil_rings()
        check(RULE, batch.rule(), limit_of(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_long_chunks_without_triton(shape: DeltaShape) -> None:
    kernel = operator("gated_delta_rule")
    for counts in ([9, 1, 130], [64, 8, 17, 0, 3]):
        batch = DeltaBatch.random(shape, counts)
        with kernel_runs("gated_delta_rule"):
            check((kernel.call, RULE[1]), batch.rule(), limit_of(shape))


def test_many_sequences_share_tiles_of_more_rows() -> None:
    shape = DeltaShape(1, 128, 128, 128, torch.bfloat16)
    batch = DeltaBatch.random(shape, [1, 4, 1, 2, 0, 8, 1, 3])
    check(RULE, batch.rule(), limit_of(shape))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("most", [1, 4, 200])
def test_replays_with_other_lengths_and_blocks(shape: DeltaShape, most: int) -> None:
    batch = DeltaBatch.random(shape, [1] * 4, padding=most * 4 - 4, most=most)
    replay, results = captured(
        lambda: (ops.causal_conv1d(*batch.conv()), ops.gated_delta_rule(*batch.rule()))
    )
    for _ in range(8):
        batch.x.normal_()
        for mine, fresh in zip(batch.states, shape.states(), strict=True):
            mine.copy_(fresh)
        batch.place([random.randint(0, most) for _ in range(4)])
        conv, rule = copies(batch.conv()), copies(batch.rule())
        replay()
        with torch.device("cpu"):
            expected = causal_conv1d_reference(*conv), gated_delta_rule_reference(*rule)
        limit = limit_of(shape)
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result.cpu(), wanted, rtol=limit, atol=limit)
        for state, wanted in zip(batch.states, [conv[2], *rule[4:9]], strict=True):
            torch.testing.assert_close(state.cpu(), wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_what_is_read_early_changes_nothing(most: int) -> None:
    """Overlapping the preceding product in a graph gives the same bits as running in sequence."""
    shape = DeltaShape(2, 4, 128, 128, torch.bfloat16)
    batch = DeltaBatch.random(shape, [1] * 2, padding=most * 2 - 2, most=most)
    channels, hidden = batch.x.shape[1], torch.randn(len(batch.x), 512).bfloat16()
    norm, weight = torch.rand(512).bfloat16(), torch.randn(channels, 512).bfloat16() / 16

    def step(early: bool) -> torch.Tensor:
        x = ops.norm_linear(hidden, norm, 1e-6, weight)
        mixed = ops.causal_conv1d(x, *batch.conv()[1:], early=early)
        return ops.gated_delta_rule(mixed, *batch.rule()[1:], early=early)

    replay, result = captured(lambda: step(True))
    for _ in range(8):
        hidden.normal_()
        batch.place([random.randint(0, most) for _ in range(2)])
        before = [state.clone() for state in batch.states]
        expected = step(False)
        after = [state.clone() for state in batch.states]
        for state, earlier in zip(batch.states, before, strict=True):
            state.copy_(earlier)
        replay()
        assert torch.equal(result, expected)
        for state, wanted in zip(batch.states, after, strict=True):
            assert torch.equal(state, wanted)


@pytest.mark.parametrize("counts", [[1, 2], [40, 100]])
def test_blocks_that_are_not_there_are_neither_read_nor_written(counts: list[int]) -> None:
    shape = SHAPES[0]
    for unknown in (BLOCKS, 2**31 - 1, -(2**31)):
        batch = DeltaBatch.random(shape, counts)
        begun = batch.indices[1] - torch.tensor(counts, dtype=torch.int32) + 5
        batch.indices[1].copy_(begun + torch.tensor(counts, dtype=torch.int32))
        before = [each.clone() for each in batch.states]
        batch.indices[2].fill_(-1)
        batch.indices[3].fill_(-1)
        expected = ops.causal_conv1d(*batch.conv()), ops.gated_delta_rule(*batch.rule())
        batch.indices[2].fill_(unknown)
        batch.indices[3].fill_(unknown)
        actual = ops.causal_conv1d(*batch.conv()), ops.gated_delta_rule(*batch.rule())
        for mine, wanted in zip(actual, expected, strict=True):
            assert torch.equal(mine, wanted)
        for state, kept in zip(batch.states, before, strict=True):
            assert torch.equal(state, kept)


@pytest.mark.parametrize("folded", [-(2**31), -1, 2**31 - 1])
@pytest.mark.parametrize("count", [1, 30])
def test_any_count_of_folded_tokens_stays_in_the_memory(folded: int, count: int) -> None:
    batch = DeltaBatch.random(SHAPES[0], [count])
    batch.indices[1].fill_(count + 20)
    batch.indices[2].fill_(3)
    batch.indices[3].fill_(4)
    batch.states[-1].fill_(folded)
    assert ops.gated_delta_rule(*batch.rule()).isfinite().all()


def test_a_state_that_is_not_aligned_is_refused() -> None:
    batch = DeltaBatch.random(SHAPES[0], [1])
    arguments = batch.rule()
    blocks, heads, values, size = batch.states[1].shape
    memory = torch.zeros(blocks * heads * values * size + 1)
    arguments[4] = memory[1:].view(blocks, heads, values, size)
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        ops.gated_delta_rule(*arguments)

# SPDX-License-Identifier: Apache-2.0
"""The chunked delta rule in Triton against the reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.kernels.triton.linear_attention.gated_delta_rule import (
    DeltaTile,
    choose_tile,
    gated_delta_chunks,
    tiles_for,
)
from rtp_llm.kernels.triton.processors import Processors, processors_of
from rtp_llm.ops.linear_attention.triton_linear_attention import takes_chunks
from rtp_llm.ops.linear_attention.triton_linear_attention_reference import (
    triton_gated_delta_chunks_reference,
)
from rtp_llm.testing.linear_attention_batches import DeltaBatch, DeltaShape, copies, random_counts

SHAPES = (
    DeltaShape(2, 4, 128, 128, torch.bfloat16),
    DeltaShape(1, 2, 128, 128, torch.float32),
    DeltaShape(1, 3, 40, 24, torch.float32),
    DeltaShape(1, 2, 128, 64, torch.float16, torch.bfloat16),
    DeltaShape(2, 2, 8, 8, torch.float32, torch.bfloat16),
    DeltaShape(1, 1, 8, 24, torch.float32),
    DeltaShape(1, 3, 24, 16, torch.float32),
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def arguments_of(batch: DeltaBatch) -> list[Any]:
    """Those of the operator, with a result that is known before."""
    *given, cu, lengths, read, write, _ = batch.rule()
    out = torch.ones(len(batch.x), batch.shape.heads, batch.shape.values, dtype=batch.x.dtype)
    return [*given, out, cu, lengths, read, write]


def check(batch: DeltaBatch, tile: DeltaTile | None = None) -> None:
    actual = arguments_of(batch)
    expected = copies(actual)
    with torch.device("cpu"):
        triton_gated_delta_chunks_reference(*expected)
    gated_delta_chunks(*actual, tile=tile)
    shape = batch.shape
    limit = 2e-5 if {shape.dtype, shape.state_dtype} == {torch.float32} else 2e-2
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=limit, atol=limit)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_batches(shape: DeltaShape) -> None:
    for _ in range(10):
        check(DeltaBatch.random(shape, random_counts()))


@pytest.mark.parametrize("counts", [[9], [63], [64], [65], [128, 8, 300], [0, 1, 0]])
def test_lengths_around_those_of_chunks(counts: list[int]) -> None:
    check(DeltaBatch.random(SHAPES[2], counts))


@pytest.mark.parametrize("which", range(3))
def test_every_tile(which: int) -> None:
    """Whatever the GPU and the batch would have chosen."""
    shape = DeltaShape(1, 2, 128, 128, torch.float16)
    batch = DeltaBatch.random(shape, [130, 1, 9, 64])
    tile = tiles_for(shape.dtype, 128, 128, processors_of(batch.x.device))[which]
    check(batch, tile)


H200 = Processors(132, 227 << 10)


def test_few_sequences_have_narrow_tiles() -> None:
    tiles = tiles_for(torch.bfloat16, 128, 128, H200)
    chosen = [choose_tile(tiles, n * 32 * 128, H200.count).columns for n in (1, 2, 4, 64)]
    assert chosen == [32, 64, 128, 128]


def test_tiles_fit_the_width_of_values() -> None:
    for width, columns in ((96, [32]), (64, [32, 64]), (256, [32, 64, 128])):
        tiles = tiles_for(torch.bfloat16, 128, width, H200)
        assert [tile.columns for tile in tiles] == columns


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]], ids=str)
def test_equal_keys_are_solved_exactly(shape: DeltaShape) -> None:
    """The worst case of the inverse: all of a chunk's tokens write to one place."""
    batch = DeltaBatch.random(shape, [200])
    batch.x[:, : 2 * shape.key_heads * shape.size] = 1.0
    batch.ba[:, : shape.heads] = 9.0
    batch.ba[:, shape.heads :] = -9.0
    check(batch)


def test_a_chunk_of_any_length_leaves_the_same_state() -> None:
    shape, whole = SHAPES[1], 130
    full = DeltaBatch.random(shape, [whole], padding=0)
    for tensor, value in zip(full.indices[1:], (whole, -1, 5), strict=True):
        tensor.fill_(value)
    expected = arguments_of(full)
    gated_delta_chunks(*expected)
    for cut in (9, 16, 63, 64, 65, 100, 121):
        halves = arguments_of(full)
        memory: list[Tensor] = shape.states()[1:]
        for rows, length, read in ((slice(0, cut), cut, -1), (slice(cut, whole), whole, 5)):
            count = rows.stop - rows.start
            numbers = torch.tensor([0, count, length, read, 5], dtype=torch.int32)
            indices = numbers[:2], numbers[2:3], numbers[3:4], numbers[4:]
            inputs = halves[0][rows], halves[1][rows], *halves[2:4]
            gated_delta_chunks(*inputs, *memory, halves[9][rows], *indices)
        torch.testing.assert_close(halves[9], expected[9], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(memory[0][5], expected[4][5], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_these_shapes_are_taken(shape: DeltaShape) -> None:
    batch = DeltaBatch.random(shape, [20])
    assert takes_chunks(batch.x, batch.states[1])


@pytest.mark.parametrize(
    "shape",
    [
        DeltaShape(1, 1, 136, 8, torch.float32),
        DeltaShape(1, 1, 64, 64, torch.bfloat16),
        DeltaShape(1, 1, 128, 24, torch.float16),
    ],
    ids=str,
)
def test_others_are_left_to_the_other_kernel(shape: DeltaShape) -> None:
    batch = DeltaBatch.random(shape, [20])
    assert not takes_chunks(batch.x, batch.states[1])

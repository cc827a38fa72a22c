# SPDX-License-Identifier: Apache-2.0
"""Decode attention in captured graphs: batches that are smaller, other lengths, freed blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.attention.decode_attention_reference import (
    decode_attention_reference,
)
from rtp_llm.testing.decode_steps import DecodeStep, norms_and_rotation
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.operator_checks import assert_near
from rtp_llm.testing.paged_batches import Shape

pytestmark = pytest.mark.skipif(
    not ops.has_kernel("decode_attention", "cuda"), reason="this build has no such kernel"
)
SHAPE = Shape(4, 2, 128, 16)
MOST, WIDTH, BLOCKS, REPLAYS = 8, 64, 520, 1000
ROWS = ("qkv", "positions", "seq_lens", "slot_mapping", "block_table")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


class Captured:
    """A graph of eight sequences, and the tensors that it reads and writes."""

    def __init__(self) -> None:
        options = norms_and_rotation(SHAPE.head_dim, torch.bfloat16)
        step = DecodeStep.random([40] * MOST, SHAPE, torch.bfloat16, **options, early=True)
        self.arguments = step.arguments | {
            "qkv": step.arguments["qkv"].contiguous(),
            "kv_cache": torch.zeros(2, BLOCKS, *step.cache.shape[2:], dtype=torch.bfloat16),
            "block_table": torch.full((MOST, WIDTH), -1, dtype=torch.int32),
        }
        self.cache: Tensor = self.arguments["kv_cache"]
        self.replay: Callable[[], None]
        self.replay, self.out = captured(lambda: ops.decode_attention(**self.arguments))

    def fill(self, lengths: list[int]) -> dict[str, Any]:
        """New tokens of that many sequences; all blocks that hold no key are poisoned."""
        arguments, size = self.arguments, SHAPE.block_size
        arguments["qkv"].normal_()
        order = torch.randperm(BLOCKS).int()
        table = torch.full((MOST, WIDTH), -1, dtype=torch.int32)
        numbers = torch.zeros(3, MOST, dtype=torch.int32)
        numbers[2] = -1
        first = 0
        for b, keys in enumerate(lengths):
            count = -(-keys // size)
            table[b, :count] = order[first : first + count]
            first += count
        counts = torch.tensor(lengths, dtype=torch.int32)
        last = (counts - 1).long()
        rows = torch.arange(len(lengths))
        numbers[0, : len(lengths)], numbers[1, : len(lengths)] = counts - 1, counts
        numbers[2, : len(lengths)] = table[rows, last // size] * size + (last % size).int()
        for name, row in zip(("positions", "seq_lens", "slot_mapping"), numbers, strict=True):
            arguments[name].copy_(row)
        arguments["block_table"].copy_(table)
        self.cache.normal_()
        self.cache[:, order[first:].long()] = torch.nan
        for b, keys in enumerate(lengths):  # the rest of each last block
            if keys % size:
                self.cache[:, table[b, (keys - 1) // size].long(), keys % size :] = torch.nan
        return arguments


def test_smaller_batches_replay_as_they_run_eagerly() -> None:
    captured = Captured()
    for batch in range(1, MOST + 1):
        arguments = captured.fill([random.randint(1, WIDTH * 16) for _ in range(batch)])
        fresh = captured.cache.clone()
        late = {"early": False}  # the clone has only just been made
        eager = ops.decode_attention(**arguments | late | {"kv_cache": fresh})
        alone = {name: arguments[name][:batch] for name in ROWS}
        fewer = ops.decode_attention(**arguments | late | alone | {"kv_cache": fresh.clone()})
        captured.replay()
        assert torch.equal(captured.out, eager)
        assert_near(captured.out[:batch], fewer, 1e-2)  # keys are cut in other places
        assert not captured.out[batch:].any()
        assert torch.equal(captured.cache.view(torch.int16), fresh.view(torch.int16))


def test_replays_never_read_a_freed_block() -> None:
    captured = Captured()
    for replay in range(REPLAYS):
        lengths = [random.randint(1, WIDTH * 16) for _ in range(random.randint(1, MOST))]
        arguments = captured.fill(lengths)
        before = captured.cache.clone() if replay % 50 == 0 else None
        captured.replay()
        assert torch.isfinite(captured.out).all()
        if before is not None:
            expected = decode_attention_reference(**arguments | {"kv_cache": before})
            assert_near(captured.out, expected, 1.6e-2)
    assert not captured.arguments["counters"].any()

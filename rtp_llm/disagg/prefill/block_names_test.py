# SPDX-License-Identifier: Apache-2.0
"""What prefill stores is named as decode asks for it: 10,000 random prompts and block sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtp_llm.attention import CacheGroups, FullAttentionSpec, MlaSpec, SlidingWindowSpec
from rtp_llm.device import cpu
from rtp_llm.disagg.prefill.prompt_writer import PromptWriter
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.cache.transfer.cache_keys import chain_keys
from rtp_llm.worker.cache.transfer.layout import CacheLayout, PromptBlocks
from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings

CASES, BATCH = 10_000, 50
POOL = 4096  # blocks of the caches, in numbers alone
Names = set[tuple[int, int, int, int, int]]  # layer, plane, position, key, bytes


@dataclass
class Case:
    """A prompt, and how much of it the caches of the two sides have."""

    sequence: int
    tokens: NDArray[np.int32]
    computed: int  # tokens that prefill has, its prefix cache's to begin with
    cached: int  # tokens that decode has

    @property
    def name(self) -> int:
        return self.sequence + 1_000_000


class NamesOnly:
    """A send buffer that keeps the names of what it is given."""

    keeps_blocks = True

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.names: dict[str, Names] = defaultdict(set)
        self.given = 0

    def send(self, layer: int, prompts: Sequence[PromptBlocks]) -> None:
        for prompt in prompts:
            rows = self.layout.rows(layer, prompt.parts[self.layout.layer_group[layer]])
            self.names[prompt.name] |= names_of(layer, rows)
            self.given += len(rows)


def names_of(layer: int, rows: NDArray[np.int64]) -> Names:
    return {
        (layer, plane, position, key, count * size)
        for plane, position, key, _, count, size, _ in rows.tolist()
    }


def layout_of(block_size: int, window: int) -> CacheLayout:
    """Two layers: one sees everything, one a window, or has one plane."""
    wide = FullAttentionSpec(1, 1, torch.int8)
    window_spec = SlidingWindowSpec(1, 1, torch.int8, window=window)
    groups = CacheGroups.of([wide, window_spec if window else MlaSpec(1, 0, torch.int8)])
    return CacheLayout(KVCache(groups, (POOL, POOL), block_size, torch.device("cpu")))


def random_case(choose: np.random.Generator, sequence: int, block_size: int) -> Case:
    length = int(choose.integers(1, 12 * block_size + 3))
    if choose.random() < 0.4:  # at a border, or next to one
        length = max(1, block_size * int(choose.integers(1, 12)) + int(choose.integers(-1, 2)))
    tokens = choose.integers(0, 50_000, length).astype(np.int32)
    computed, cached = (choose.integers(0, (length - 1) // block_size + 1, 2) * block_size).tolist()
    return Case(sequence, tokens, computed, cached)


def compute(writer: PromptWriter, cases: list[Case], choose: np.random.Generator) -> None:
    """Steps of random lengths, until every prompt is computed."""
    longest = max(len(case.tokens) for case in cases)
    while left := [case for case in cases if case.computed < len(case.tokens)]:
        for case in left:
            case.computed = min(len(case.tokens), case.computed + int(choose.integers(1, longest)))
        table = choose.integers(1, POOL, (len(left), longest)).astype(np.int32)
        batch: Any = SimpleNamespace(
            seq_ids=np.array([case.sequence for case in left]),
            seq_lens=np.array([case.computed for case in left]),
            block_table=(table, table),
        )
        cycle = writer.begin(batch)
        assert cycle is not None
        with cycle as hooks:
            assert hooks.save_kv_layer is not None
            hooks.save_kv_layer(0)
            hooks.save_kv_layer(1)
        writer.finish()
        assert not writer.take_failures()


def asked_for(layout: CacheLayout, case: Case) -> Names:
    """What decode loads into the blocks that it was given."""
    length = len(case.tokens)
    keys = chain_keys(case.tokens, layout.block_size)
    first, end = case.cached // layout.block_size, -(-length // layout.block_size)
    names: Names = set()
    for layer, group in enumerate(layout.layer_group):
        blocks = np.arange(first, end, dtype=np.int32) + 1
        blocks[: max(0, layout.first_needed(group, length) - first)] = -1
        names |= names_of(layer, layout.rows(layer, layout.part(group, first, blocks, keys)))
    return names


def test_every_block_that_decode_asks_for_was_stored_under_its_name() -> None:
    choose = np.random.default_rng()
    prompts: Any = SimpleNamespace(pin=lambda *_: None, unpin=lambda _: None)
    device = cpu.CpuDevice()
    asked = 0
    for begin in range(0, CASES, BATCH):
        block_size = int(choose.choice([1, 3, 4, 8, 16, 64]))
        layout = layout_of(block_size, window=int(choose.integers(1, 6 * block_size + 2)))
        send_buffer = NamesOnly(layout)
        one = WriterSettings(threads=1)
        writer = PromptWriter(layout, prompts, send_buffer, device, one)
        cases = [random_case(choose, begin + index, block_size) for index in range(BATCH)]
        for case in cases:
            writer.add(case.sequence, case.name, case.tokens, "")
        compute(writer, cases, choose)
        for case in cases:
            wanted, stored = asked_for(layout, case), send_buffer.names[str(case.name)]
            assert wanted <= stored, (case, block_size, wanted - stored)
            assert case.cached > 0 or wanted == stored
            asked += len(wanted)
        assert send_buffer.given == sum(map(len, send_buffer.names.values())), (
            "a block was stored twice"
        )
        writer.close()
    assert asked > CASES

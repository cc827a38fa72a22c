# SPDX-License-Identifier: Apache-2.0
"""Random batches for attention: a paged cache in which only the keys of a sequence are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)


@dataclass(frozen=True)
class Shape:
    """Query heads, KV heads, head size and block size."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16


@dataclass(frozen=True)
class PagedBatch:
    """The tensors of a call; `lengths` are (queries, keys) of the sequences."""

    q: Tensor
    kv_cache: Tensor
    lengths: tuple[tuple[int, int], ...]
    block_table: Tensor

    @staticmethod
    def random(lengths: Sequence[tuple[int, int]], shape: Shape, dtype: torch.dtype) -> PagedBatch:
        """Blocks in random order; whatever holds no key is NaN, unused table entries are -1."""
        size = shape.block_size
        blocks = [-(-keys // size) for _, keys in lengths]
        order = torch.randperm(sum(blocks) + 3).int()
        table = torch.full((len(lengths), max(blocks, default=0) + 2), -1, dtype=torch.int32)
        planes = (2, len(order), size, shape.kv_heads, shape.head_dim)
        cache = torch.full(planes, torch.nan, dtype=dtype)
        first = 0
        for b, (_, keys) in enumerate(lengths):
            own = order[first : first + blocks[b]]
            first += blocks[b]
            table[b, : blocks[b]] = own
            slot = torch.arange(keys)
            picked = own[slot // size].long()
            cache[:, picked, slot % size] = torch.randn(2, keys, *planes[3:]).to(dtype)
        tokens = sum(queries for queries, _ in lengths)
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        packed = torch.randn(tokens, width).to(dtype)
        q = packed[:, : shape.heads * shape.head_dim].view(tokens, shape.heads, shape.head_dim)
        return PagedBatch(q, cache, tuple(lengths), table)

    def arguments(self) -> tuple[Any, ...]:
        """What paged_attention takes by position."""
        queries = [0, *accumulate(queries for queries, _ in self.lengths)]
        keys = [keys for _, keys in self.lengths]
        return (
            self.q,
            self.kv_cache,
            torch.tensor(queries, dtype=torch.int32),
            torch.tensor(keys, dtype=torch.int32),
            self.block_table,
            max((queries for queries, _ in self.lengths), default=0),
            max(keys, default=0),
            self.q.shape[2] ** -0.5,
        )

    def run(self, **options: Any) -> Tensor:
        """The native operator."""
        return ops.paged_attention(*self.arguments(), **options)

    def expected(self, **options: Any) -> Tensor:
        """The reference in float64."""
        q, cache, *rest = self.arguments()
        return paged_attention_reference(q.double(), cache.double(), *rest, **options)

# SPDX-License-Identifier: Apache-2.0
"""Random decode steps: a paged cache in which only the old keys of a sequence are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.attention.decode_attention_reference import (
    decode_attention_reference,
)
from rtp_llm.testing.paged_batches import Shape

POSITIONS = 4096


@dataclass
class DecodeStep:
    """The arguments of a call by name; `arguments["counters"]` are zeros."""

    arguments: dict[str, Any]

    @staticmethod
    def random(
        lengths: Sequence[int],
        shape: Shape,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> DecodeStep:
        """Sequences of `lengths` keys including the new one; 0 = padding. Random block order."""
        size = shape.block_size
        table = tables(lengths, size)
        planes = (2, int(table.max()) + 3, size, shape.kv_heads, shape.head_dim)
        cache = torch.full(planes, torch.nan)
        slots = []
        for row, keys in zip(table, lengths, strict=True):
            place = torch.arange(max(keys - 1, 0))
            cache[:, row[place // size].long(), place % size] = torch.randn(
                2, len(place), *planes[3:]
            )
            last = keys - 1
            slots.append(int(row[last // size]) * size + last % size if keys else -1)
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        rows = torch.randn(len(lengths), width + 64).to(dtype)
        arguments = {
            "qkv": rows[:, :width],
            "kv_cache": cache.to(cache_dtype or dtype),
            "counters": torch.zeros(len(lengths) * shape.kv_heads, dtype=torch.int32),
            "positions": torch.tensor([max(keys - 1, 0) for keys in lengths], dtype=torch.int32),
            "seq_lens": torch.tensor(list(lengths), dtype=torch.int32),
            "slot_mapping": torch.tensor(slots, dtype=torch.int32),
            "block_table": table,
            "scale": shape.head_dim**-0.5,
        }
        return DecodeStep(arguments | options)

    def copy(self) -> DecodeStep:
        """Copy the step, including its cache and counters."""
        own = {name: self.arguments[name].clone() for name in ("kv_cache", "counters")}
        return DecodeStep(self.arguments | own)

    def expected(self) -> Tensor:
        """The reference's result; writes the cache."""
        return decode_attention_reference(**self.arguments)

    @property
    def cache(self) -> Tensor:
        cache: Tensor = self.arguments["kv_cache"]
        return cache


def norms_and_rotation(head_dim: int, dtype: torch.dtype, rotary_dim: int = 0) -> dict[str, Any]:
    """Options with everything on; rotary_dim 0 = the whole head."""
    angles = torch.rand(POSITIONS, (rotary_dim or head_dim) // 2) * 6.3
    return {
        "cos_sin": torch.cat([angles.cos(), angles.sin()], dim=1),
        "q_weight": (1 + 0.2 * torch.randn(head_dim)).to(dtype),
        "k_weight": (1 + 0.2 * torch.randn(head_dim)).to(dtype),
    }


def tables(lengths: Sequence[int], block_size: int, spare: int = 2) -> Tensor:
    """A block table in random order, -1 after the last block of each sequence."""
    blocks = [-(-keys // block_size) for keys in lengths]
    order = torch.randperm(sum(blocks) + 1).int()
    table = torch.full((len(blocks), max(blocks, default=0) + spare), -1, dtype=torch.int32)
    first = 0
    for row, count in zip(table, blocks, strict=True):
        row[:count] = order[first : first + count]
        first += count
    return table

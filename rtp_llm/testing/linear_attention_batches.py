# SPDX-License-Identifier: Apache-2.0
"""Random steps of linear attention over blocks in one memory, as a cache lays them out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm.attention.cache_spec import RecurrentSpec

RING, WINDOW, TAPS = 16, 11, 4
BLOCKS = 24


@dataclass(frozen=True)
class DeltaShape:
    """Heads of keys and values, their widths, and the numbers' types."""

    key_heads: int
    heads: int
    size: int
    values: int
    dtype: torch.dtype
    state_dtype: torch.dtype = torch.float32

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.size + self.heads * self.values

    def states(self, blocks: int = BLOCKS) -> list[Tensor]:
        """inputs, state, ring_k, ring_u, ring_g and folded, whose blocks lie in each other's."""
        size, heads = self.size, self.heads
        spec = RecurrentSpec(
            (
                (WINDOW, self.channels),
                (heads, self.values, size),
                (RING, self.key_heads, size),
                (RING, heads, self.values),
                (RING, heads),
                (heads, self.values // 8),
            ),
            (self.dtype, self.state_dtype, self.dtype, torch.float32, torch.float32, torch.int32),
        )
        layer = torch.zeros(spec.layer_shape(blocks, 1), dtype=spec.memory_dtype)
        inputs, state, ring_k, ring_u, ring_g, folded = views = spec.states(layer)
        inputs.normal_()
        state.normal_(std=0.3)
        ring_k.normal_()
        ring_u.normal_(std=0.3)
        ring_g.uniform_(-1, 0)
        folded.fill_(1 << 20)
        return list(views)


@dataclass
class DeltaBatch:
    """One step of sequences whose states are anything; `states` as of DeltaShape."""

    shape: DeltaShape
    states: list[Tensor]
    x: Tensor
    weight: Tensor
    ba: Tensor
    constants: list[Tensor]
    indices: list[Tensor]
    max_seqlen_q: int

    @classmethod
    def random(
        cls, shape: DeltaShape, counts: Sequence[int], padding: int = 2, most: int | None = None
    ) -> DeltaBatch:
        """Chunks of `counts` tokens, followed by `padding` rows that belong to no sequence."""
        states, tokens = shape.states(), sum(counts) + padding
        wide = torch.randn(tokens, shape.channels + 16).to(shape.dtype)
        gates = torch.randn(tokens, 2 * shape.heads + 8).to(shape.dtype)
        batch = cls(
            shape, states, wide[:, 8:-8], (torch.randn(shape.channels, TAPS) / 2).to(shape.dtype),
            gates[:, 8:], [torch.rand(shape.heads) * 2, torch.randn(shape.heads)],
            [torch.zeros(len(counts) + (i == 0), dtype=torch.int32) for i in range(4)],
            max([*counts, most or 0]),
        )  # fmt: skip
        batch.place(counts)
        return batch

    def place(self, counts: Sequence[int]) -> None:
        """Random lengths and blocks for chunks of `counts` tokens, in the same tensors."""
        blocks = random.sample(range(BLOCKS), 2 * len(counts))
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0)
        lengths, reads, writes = [], [], []
        for count, read, other in zip(counts, blocks[::2], blocks[1::2], strict=True):
            begin = random.choice([0, 3, random.randint(0, 60)])
            lengths.append(begin + count)
            reads.append(read if begin > 0 and random.random() < 0.9 else -1)
            writes.append(random.choice([read, read, other, -1, BLOCKS]))
            self.states[-1][read] = max(0, begin - random.randint(0, RING // 2))
        for tensor, values in zip(
            self.indices, (starts.tolist(), lengths, reads, writes), strict=True
        ):
            tensor.copy_(torch.tensor(values, dtype=torch.int32))

    def spoil_rings(self) -> None:
        """NaN wherever in a ring there is no token that the state of its block still lacks."""
        starts, lengths, reads, _ = (each.tolist() for each in self.indices)
        folded = self.states[-1][:, 0, 0].tolist()
        live = torch.zeros(BLOCKS, RING, dtype=torch.bool)
        for i, block in enumerate(reads):
            for position in range(folded[block], lengths[i] - starts[i + 1] + starts[i]):
                live[block, position % RING] |= block >= 0
        for ring in self.states[2:5]:
            ring[~live.to(ring.device)] = torch.nan

    def conv(self) -> list[Tensor | int]:
        """The arguments of causal_conv1d."""
        return [self.x, self.weight, self.states[0], *self.indices, self.max_seqlen_q]

    def rule(self) -> list[Tensor | int]:
        """The arguments of gated_delta_rule."""
        states, indices = self.states[1:], self.indices
        return [self.x, self.ba, *self.constants, *states, *indices, self.max_seqlen_q]


def copies(arguments: Sequence[Tensor | int], device: str = "cpu") -> list[Tensor | int]:
    """The same arguments in other memory."""
    return [each.to(device, copy=True) if isinstance(each, Tensor) else each for each in arguments]


def random_counts(most: int = 8) -> list[int]:
    """Tokens of up to `most` sequences: none, one, a window or a prompt."""
    kinds = (0, 1, 1, 1, random.randint(2, 8), random.randint(9, 150))
    return [random.choice(kinds) for _ in range(random.randint(1, most))]

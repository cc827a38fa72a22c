# SPDX-License-Identifier: Apache-2.0
"""Biases of attention scores by the distance of key and query, as in T5 and MPNet."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import shard_target
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget

# Keys that are further away share the last bucket of their side.
_FARTHEST = 128


class PositionBias(Layer):
    """A learned bias for each bucket of distances and head, of those of this rank."""

    buckets: Tensor

    def __init__(
        self, num_buckets: int, num_heads: int, num_positions: int, options: LayerOptions
    ) -> None:
        super().__init__()
        self._heads = Shard.even(num_heads, options.tensor_parallel, "num_attention_heads")
        self.weight = options.parameter(num_buckets, self._heads.size)
        buckets = distance_buckets(num_buckets, num_positions).to(options.device)
        self.register_buffer("buckets", buckets, persistent=False)
        self._longest = num_positions

    def forward(self, length: int) -> Tensor:
        """The biases float32 [heads, 2 * length - 1] by key - query + length - 1."""
        first = self._longest - length
        near = self.buckets[first : first + 2 * length - 1]
        return self.weight.index_select(0, near).t().float().contiguous()

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", shard_target(RowsTarget(self.weight), columns=self._heads)


def distance_buckets(num_buckets: int, num_positions: int) -> Tensor:
    """Int64 [2 * num_positions - 1]: the bucket of key - query, from 1 - num_positions on.

    Half of the buckets are for keys after the query. Of each half the first half has a distance
    each, the rest grow by a factor.
    """
    distance = torch.arange(1 - num_positions, num_positions)
    half = num_buckets // 2
    exact, size = half // 2, distance.abs()
    wide = torch.log(size.float().clamp(min=1) / exact) / math.log(_FARTHEST / exact)
    bucket = torch.where(size < exact, size, exact + (wide * (half - exact)).long())
    return bucket.clamp(max=half - 1) + half * (distance > 0)

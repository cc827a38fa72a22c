# SPDX-License-Identifier: Apache-2.0
"""The heads of one layer's attention, and a tensor-parallel rank's part of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards

_Heads = TypeVar("_Heads", bound="AttentionHeads")


@dataclass(frozen=True)
class AttentionHeads:
    """Numbers of query heads and of KV heads, each with `head_dim` channels.

    `heads` and `kv_heads` say which of the model's heads a tensor-parallel rank holds.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    heads: Shard | None = field(default=None, kw_only=True)
    kv_heads: Shard | None = field(default=None, kw_only=True)

    def on_rank(self: _Heads, ranks: TensorParallel) -> _Heads:
        """Return the shape of one rank's part; DivisionError if heads cannot be divided evenly."""
        heads = Shard.even(self.num_heads, ranks, "num_attention_heads")
        kv_heads = Shard.of_kv_heads(self.num_kv_heads, ranks)
        return replace(
            self,
            num_heads=heads.size,
            num_kv_heads=kv_heads.size,
            heads=heads,
            kv_heads=kv_heads,
        )

    @property
    def channel_shards(self) -> tuple[Shard, Shard] | None:
        """The channels of queries, and of keys or values, on this rank; None: all of them."""
        if self.heads is None or self.kv_heads is None:
            return None
        return self.heads.scaled(self.head_dim), self.kv_heads.scaled(self.head_dim)

    @property
    def output_shards(self) -> LinearShards:
        """The part of the output projection that this rank holds."""
        channels = self.channel_shards
        return WHOLE if channels is None else LinearShards(columns=channels[0])

# SPDX-License-Identifier: Apache-2.0
"""Attention with one norm over the queries of all heads, and one over all keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import AttentionBackend, Backend, ForwardBatch, Rotation
from rtp_llm.layers.attention import AttentionLayer, AttentionShape
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import shard_target
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget


@dataclass(frozen=True)
class WideNormShape(AttentionShape):
    """Attention whose norms of epsilon `wide_norm_eps` span all heads (OLMo 2, MiniMax-M2)."""

    wide_norm_eps: float = 1e-6

    def make(
        self, index: int, backend: Backend[Any] | None, options: LayerOptions
    ) -> WideNormAttention:
        assert isinstance(backend, AttentionBackend)
        return WideNormAttention(index, self, backend, options)


class WideNormAttention(AttentionLayer):
    """Attention of layer `index` that normalises queries and keys before they rotate.

    Tensor-parallel ranks add up the squares of their channels first.
    """

    def __init__(
        self, index: int, shape: WideNormShape, backend: AttentionBackend, options: LayerOptions
    ) -> None:
        super().__init__(index, shape, backend, options)
        queries, keys = shape.channel_shards or (None, None)
        q_size, k_size = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
        self.q_norm = q_norm = _WideNorm(q_size, queries, shape.wide_norm_eps, options)
        self.k_norm = k_norm = _WideNorm(k_size, keys, shape.wide_norm_eps, options)
        self._norms = (q_norm, k_norm)
        self._ranks = options.tensor_parallel

    def _mix(self, qkv: Tensor, cos_sin: Tensor | None, batch: ForwardBatch) -> Tensor:
        norms = self._norms
        q_size, k_size = (norm.size for norm in norms)
        rows = (qkv[:, :q_size], qkv[:, q_size : q_size + k_size])
        if self._ranks.size == 1:
            for norm, part in zip(norms, rows, strict=True):
                part.copy_(ops.rms_norm(part, norm.weight, norm.eps))
        else:
            squares = [norm.squares(part) for norm, part in zip(norms, rows, strict=True)]
            total = self._ranks.all_reduce(torch.stack(squares, 1))
            for place, (norm, part) in enumerate(zip(norms, rows, strict=True)):
                norm.scale(part, total[:, place : place + 1])
        return super()._mix(qkv, cos_sin, batch)

    def _rotation(self, cos_sin: Tensor | None) -> Rotation:
        return Rotation(cos_sin, is_neox=not self.shape.pairs)


class _WideNorm(RMSNorm):
    """The norm of a row of which this rank has the channels `shard`, None: all of them."""

    def __init__(self, size: int, shard: Shard | None, eps: float, options: LayerOptions) -> None:
        super().__init__(size, eps, options)
        self.size, self._shard = size, shard
        self._whole = size if shard is None else shard.whole
        # Several ranks may have the same channels, which count once.
        self._copies = options.tensor_parallel.size * size / self._whole

    def squares(self, x: Tensor) -> Tensor:
        """This rank's share [T] in the mean of the squares of x [T, size]."""
        return x.float().square().sum(1).div_(self._whole * self._copies)

    def scale(self, x: Tensor, mean: Tensor) -> None:
        """Normalise x [T, size] in place; `mean` [T, 1] is that of the squares of whole rows."""
        x.copy_(x.float() * torch.rsqrt(mean + self.eps) * self.weight)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", shard_target(RowsTarget(self.weight), self._shard)

# SPDX-License-Identifier: Apache-2.0
"""The attention layer: projections, norms of Q and K, rotation with the cache write, attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.attention import (
    AttentionBackend,
    AttentionConfig,
    Backend,
    BackendOptions,
    CacheDtypes,
    CacheScales,
    CacheSpec,
    ForwardBatch,
    FullAttentionSpec,
    Rotation,
    SlidingWindowSpec,
    cache_dtypes,
)
from rtp_llm.layers.attention_heads import AttentionHeads
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.query_scaling import QueryScales, QueryScaling
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards, shard_target
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget


@dataclass(frozen=True)
class AttentionShape(AttentionHeads):
    """Sizes and options of one layer's attention; `window` 0 means full attention.

    `norm_eps` is the epsilon of the query and key norms (None: no norms); `norm_offset` is added to
    their weights. `output_gate`: the result is multiplied by a sigmoid gate whose rows follow each
    head's query rows in the checkpoint's q_proj. `sinks`: each head has a logit that takes part in
    the softmax and has no value. `scale` and `soft_cap` are those of AttentionConfig. `input_size`
    is the input width of the projections if it is wider than `hidden_size`, that of the output.
    `pairs`: channels 2 i and 2 i + 1 of a head rotate together. `fused`: the checkpoint's tensor
    that has the rows of queries, then of keys, then of values.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    norm_eps: float | None = None
    window: int = 0
    norm_offset: float = 0.0
    output_gate: bool = False
    sinks: bool = False
    input_size: int = 0
    scale: float = 0.0
    soft_cap: float = 0.0
    pairs: bool = False
    fused: str = ""
    query_scaling: QueryScaling | None = None

    checkpoint_name: ClassVar[str] = "self_attn"

    @property
    def parts(self) -> dict[str, int]:
        """The projections of the input, in their order in a row of the result, and their sizes."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if not self.output_gate:
            return {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        # The gate follows what attention reads, so only the row stride differs.
        return {"query": q_size, "k_proj": kv_size, "v_proj": kv_size, "gate": q_size}

    @property
    def input_shards(self) -> LinearShards:
        """The part of the query, key, value and gate projections that this rank holds."""
        if (channels := self.channel_shards) is None:
            return WHOLE
        queries, keys = channels
        names = ("query", "gate") if self.output_gate else ("q_proj",)
        rows = {**dict.fromkeys(names, queries), "k_proj": keys, "v_proj": keys}
        return LinearShards(rows, concatenated=bool(self.fused))

    @property
    def shared_tensors(self) -> list[Interleaved]:
        """The checkpoint's tensors that hold several of `parts`."""
        if self.output_gate:
            return [Interleaved("q_proj", ("query", "gate"), self.num_heads)]
        return [Interleaved(self.fused, tuple(self.parts), 1)] if self.fused else []

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec:
        dtype = dtypes.keys_and_values
        if self.window:
            return SlidingWindowSpec(self.num_kv_heads, self.head_dim, dtype, window=self.window)
        return FullAttentionSpec(self.num_kv_heads, self.head_dim, dtype)

    def backend_config(self, options: BackendOptions) -> AttentionConfig:
        return AttentionConfig(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            windows=(self.window,),
            sinks=self.sinks,
            scale=self.scale,
            soft_cap=self.soft_cap,
            **vars(options),
        )

    def make(
        self, index: int, backend: Backend[Any] | None, options: LayerOptions
    ) -> AttentionLayer:
        assert isinstance(backend, AttentionBackend)
        return AttentionLayer(index, self, backend, options)


class Sinks(nn.Module):
    """The sinks of a layer's heads, `weight` float32 [H]."""

    def __init__(self, shape: AttentionShape, options: LayerOptions) -> None:
        super().__init__()
        self.weight = options.parameter(shape.num_heads, dtype=torch.float32)
        self._heads = shape.heads

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield path.rstrip("."), shard_target(RowsTarget(self.weight), self._heads)


class AttentionLayer(Mixer):
    """Attention of layer `index` over the paged cache, in place on the fused projection."""

    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    sinks: Sinks | None
    query_scales: QueryScales | None

    def __init__(
        self, index: int, shape: AttentionShape, backend: AttentionBackend, options: LayerOptions
    ) -> None:
        super().__init__()
        self.index, self.shape, self.backend = index, shape, backend
        if (scales := options.cache_scales.get(options.path)) and not options.planned:
            backend.keep_scales(index, CacheScales.of(*scales, options.device))
        q_size, kv_size = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
        self.qkv_size = q_size + 2 * kv_size
        columns = shape.input_size or shape.hidden_size
        bias, shards, shared = shape.qkv_bias, shape.input_shards, shape.shared_tensors
        self.qkv_proj = make_linear(columns, shape.parts, bias, options, shared, shards)
        out, bias, shards = {"o_proj": shape.hidden_size}, shape.output_bias, shape.output_shards
        self.o_proj = make_linear(q_size, out, bias, options, shards=shards)
        self.q_norm = self.k_norm = None
        self.sinks = Sinks(shape, options) if shape.sinks else None
        self.query_scales = None
        if shape.query_scaling is not None:
            self.query_scales = QueryScales(shape.query_scaling, options)
        if shape.norm_eps is not None:
            size, eps, offset = shape.head_dim, shape.norm_eps, shape.norm_offset
            self.q_norm = RMSNorm(size, eps, options, offset)
            self.k_norm = RMSNorm(size, eps, options, offset)

    def cache_spec(self) -> CacheSpec:
        return self.shape.cache_spec(cache_dtypes(self.backend.config))

    def forward(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.normed and add_to.

        Writes K and V of the T tokens into the layer's cache.
        """
        qkv = self.qkv_proj.normed(norm, residual, pending)
        return self.attend(qkv, residual, cos_sin, batch)

    def alone(
        self,
        norm: RMSNorm | None,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """`forward` without adding anything to the residual but `pending`; `norm` None: none."""
        qkv = self.qkv_proj.of_sum(norm, residual, pending)
        return self.o_proj(self._mix(qkv, cos_sin, batch))  # type: ignore[no-any-return]

    def attend(
        self, qkv: Tensor, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """Apply the rest of the layer to ``qkv``, the result of the first projection.

        See Linear.add_to for what is returned.
        """
        return self.o_proj.add_to(residual, self._mix(qkv, cos_sin, batch))

    def _mix(self, qkv: Tensor, cos_sin: Tensor | None, batch: ForwardBatch) -> Tensor:
        gate = None
        if self.shape.output_gate:
            qkv, gate = qkv[:, : self.qkv_size], qkv[:, self.qkv_size :]
        if self.query_scales is not None:
            self.query_scales(qkv[:, : self.shape.num_heads * self.shape.head_dim], batch)
        rotation = self._rotation(cos_sin)
        sinks = None if self.sinks is None else self.sinks.weight
        mixed = self.backend.attend(qkv, self.index, self.shape.window, batch, rotation, sinks)
        if gate is not None:
            ops.sigmoid_gate(mixed, gate)
        return mixed

    def _rotation(self, cos_sin: Tensor | None) -> Rotation:
        """What the backend does to queries and keys, apart from storing them."""
        rotation = Rotation(cos_sin, is_neox=not self.shape.pairs)
        if self.q_norm is None or self.k_norm is None:
            return rotation
        return rotation._replace(
            q_weight=self.q_norm.weight,
            k_weight=self.k_norm.weight,
            eps=self.q_norm.eps,
            norm_offset=self.q_norm.offset,
        )

# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention: keys and values are projections of one small latent per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtp_llm.attention import (
    Backend,
    BackendOptions,
    CacheDtypes,
    CacheSpec,
    ForwardBatch,
    IndexerInputs,
    MlaBackend,
    MlaConfig,
    MlaSpec,
    MlaWeights,
    cache_dtypes,
)
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.indexer import Indexer, IndexerShape
from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards, shard_target
from rtp_llm.layers.weights.targets import HeadsTarget, WeightTarget

# DeepSeek's code gives these norms their own epsilon, whatever rms_norm_eps says.
_INNER_EPS = 1e-6


@dataclass(frozen=True)
class MlaShape:
    """Sizes of one layer's MLA in elements; `query_rank` 0: queries are not compressed.

    `rank` is the size of the latent, `rope_size` of the rotated key; a head's query has nope_size +
    rope_size elements, its value `value_size`. `scale` multiplies the scores; `bias`: the
    projections from and to the hidden state have biases; `is_neox`: halves rotate together.
    `heads`: the model's heads on this tensor-parallel rank; every rank has the whole latent.
    `indexer` selects what queries see; with `shares_selection` that of an earlier layer does.
    `split_kv`: the checkpoint has k_b_proj [heads * rank, nope_size] and v_b_proj [heads *
    value_size, rank] instead of kv_b_proj.
    """

    hidden_size: int
    num_heads: int
    query_rank: int
    rank: int
    rope_size: int
    nope_size: int
    value_size: int
    scale: float
    bias: bool = False
    is_neox: bool = False
    heads: Shard | None = None
    indexer: IndexerShape | None = None
    shares_selection: bool = False
    split_kv: bool = False

    checkpoint_name: ClassVar[str] = "self_attn"

    def on_rank(self, ranks: TensorParallel) -> MlaShape:
        heads = Shard.even(self.num_heads, ranks, "num_attention_heads")
        return replace(self, heads=heads, num_heads=heads.size)

    def local_rows(self, part: str, size: int) -> LinearShards:
        """This rank's shard of a projection to the heads; ``part`` has `size` rows per head."""
        return WHOLE if self.heads is None else LinearShards({part: self.heads.scaled(size)})

    @property
    def output_shards(self) -> LinearShards:
        """This rank's shard of the output projection."""
        return (
            WHOLE
            if self.heads is None
            else LinearShards(columns=self.heads.scaled(self.value_size))
        )

    @property
    def query_size(self) -> int:
        return self.nope_size + self.rope_size

    @property
    def cache_size(self) -> int:
        """Number of cache elements per token and layer."""
        return self.rank + self.rope_size

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec:
        return MlaSpec(self.rank, self.rope_size, dtypes.keys_and_values)

    def backend_config(self, options: BackendOptions) -> MlaConfig:
        return MlaConfig(
            num_heads=self.num_heads,
            latent_size=self.rank,
            rope_size=self.rope_size,
            nope_size=self.nope_size,
            value_size=self.value_size,
            scale=self.scale,
            is_neox=self.is_neox,
            indexer=None if self.indexer is None else self.indexer.config,
            **vars(options),
        )

    def make(
        self, index: int, backend: Backend[Any] | None, options: LayerOptions
    ) -> MlaAttentionLayer:
        assert isinstance(backend, MlaBackend)
        return MlaAttentionLayer(index, self, backend, options)


class SplitKeysAndValues(PlainLinear):
    """A kv_b_proj whose parts are two tensors, floats, the one of keys transposed in each head."""

    shape: MlaShape

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        shape, parent = self.shape, path.removesuffix("kv_b_proj.")
        weight = self.weight.detach().view(shape.num_heads, -1, shape.rank)
        keys, values = torch.split_with_sizes(weight, (shape.nope_size, shape.value_size), 1)
        parts = {"k_b_proj": keys.transpose(1, 2), "v_b_proj": values}
        for name, part in parts.items():
            rows = None if shape.heads is None else shape.heads.scaled(part.shape[1])
            yield f"{parent}{name}.weight", shard_target(HeadsTarget(part), rows)


class MlaAttentionLayer(Mixer):
    """MLA of layer `index` over the paged cache."""

    def __init__(
        self, index: int, shape: MlaShape, backend: MlaBackend, options: LayerOptions
    ) -> None:
        super().__init__()
        self.index, self.shape, self.backend = index, shape, backend
        hidden, bias = shape.hidden_size, shape.bias
        self.num_heads = num_heads = shape.num_heads
        queries = num_heads * shape.query_size
        # One product for all projections of the hidden state.
        first = {"q_a_proj": shape.query_rank} if shape.query_rank else {"q_proj": queries}
        parts = {**first, "kv_a_proj_with_mqa": shape.cache_size}
        shards = WHOLE if shape.query_rank else shape.local_rows("q_proj", shape.query_size)
        self.qkv_a_proj = make_linear(hidden, parts, bias, options, shards=shards)
        self.q_size = self.qkv_a_proj.rows - shape.cache_size
        self.q_a_layernorm = self.q_b_proj = None
        if shape.query_rank:
            self.q_a_layernorm = RMSNorm(shape.query_rank, _INNER_EPS, options)
            parts, shards = {"q_b_proj": queries}, shape.local_rows("q_b_proj", shape.query_size)
            self.q_b_proj = make_linear(shape.query_rank, parts, False, options, shards=shards)
        self.kv_a_layernorm = RMSNorm(shape.rank, _INNER_EPS, options)
        # Both ways of attention take parts of this weight as floats.
        size = shape.nope_size + shape.value_size
        parts, shards = {"kv_b_proj": num_heads * size}, shape.local_rows("kv_b_proj", size)
        kind = SplitKeysAndValues if shape.split_kv else PlainLinear
        self.kv_b_proj = kind(shape.rank, parts, False, options.dequantized(), shards=shards)
        if isinstance(self.kv_b_proj, SplitKeysAndValues):
            self.kv_b_proj.shape = shape
        values, parts = num_heads * shape.value_size, {"o_proj": hidden}
        self.o_proj = make_linear(values, parts, bias, options, shards=shape.output_shards)
        self.indexer: Indexer | None = None
        if shape.indexer is not None and not shape.shares_selection:
            self.indexer = Indexer(shape.indexer, options.inside("indexer"))
        self.keys: Tensor | None = None

    def finish_loading(self) -> None:
        """Transpose the key part of kv_b if the backend wants it."""
        if self.backend.wants_keys:
            keys = self._kv_b()[:, : self.shape.nope_size].detach()
            self.keys = keys.transpose(1, 2).contiguous()

    def cache_spec(self) -> CacheSpec:
        return self.shape.cache_spec(cache_dtypes(self.backend.config))

    def _kv_b(self) -> Tensor:
        return self.kv_b_proj.weight.view(self.num_heads, -1, self.shape.rank)

    def forward(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.normed and add_to.

        Writes latents and rotated keys of the T tokens into the layer's cache.
        """
        if self.indexer is None:
            projected = self.qkv_a_proj.normed(norm, residual, pending)
            q, kv, index = *self._queries_and_latents(projected), None
        else:
            x = norm.after(pending, residual)
            q, kv, index = self._indexed(self.indexer, x)
        heads = q.view(len(q), self.num_heads, self.shape.query_size)
        norm_weight, eps = self.kv_a_layernorm.weight, self.kv_a_layernorm.eps
        weights = MlaWeights(norm_weight, eps, self._kv_b(), self.keys)
        mixed = self.backend.attend(heads, kv, self.index, cos_sin, weights, batch, index)
        return self.o_proj.add_to(residual, mixed)

    def _queries_and_latents(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        q, kv = projected[:, : self.q_size], projected[:, self.q_size :]
        if self.q_b_proj is not None and self.q_a_layernorm is not None:
            q = self.q_b_proj.normed(self.q_a_layernorm, q, None)
        return q, kv

    def _indexed(self, indexer: Indexer, x: Tensor) -> tuple[Tensor, Tensor, IndexerInputs]:
        """The same of x [T, hidden], and what the indexer makes of x and of the query latents."""
        projected = self.qkv_a_proj(x)
        assert self.q_b_proj is not None and self.q_a_layernorm is not None
        compressed = self.q_a_layernorm(projected[:, : self.q_size])
        q, kv = self.q_b_proj(compressed), projected[:, self.q_size :]
        return q, kv, indexer(x, compressed)

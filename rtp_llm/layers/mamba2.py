# SPDX-License-Identifier: Apache-2.0
"""Mamba-2 (arXiv 2405.21060): linear attention with a state that decays by head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm.attention import (
    Backend,
    BackendOptions,
    CacheDtypes,
    CacheSpec,
    ForwardBatch,
    LinearAttentionConfig,
    Mamba2Backend,
    Mamba2Weights,
    cache_dtypes,
)
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.linear_attention import recurrent_spec
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard import Shard, concatenated
from rtp_llm.layers.weights.shard_targets import LinearShards, shard_target
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget, weight_targets

_IN = "in_proj"


@dataclass(frozen=True)
class Mamba2Shape:
    """Sizes of one layer's Mamba-2, in elements.

    `num_heads` heads of `head_dim` share `num_groups` groups of B and C of `state_size`;
    consecutive heads share a group. The convolution spans `kernel_size` tokens. A token's step is
    kept within `dt_limits`. `heads` and `groups` are those of the model that this tensor-parallel
    rank holds; with fewer groups than ranks several ranks hold the same.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel_size: int
    norm_eps: float
    conv_bias: bool = True
    proj_bias: bool = False
    dt_limits: tuple[float, float] = (0.0, float("inf"))
    heads: Shard | None = None
    groups: Shard | None = None

    checkpoint_name: ClassVar[str] = "mamba"

    def on_rank(self, ranks: TensorParallel) -> Mamba2Shape:
        heads = Shard.even(self.num_heads, ranks, "the number of Mamba-2 heads")
        groups = Shard.of_kv_heads(self.num_groups, ranks, "the number of Mamba-2 groups")
        return replace(
            self, heads=heads, groups=groups, num_heads=heads.size, num_groups=groups.size
        )

    @property
    def inner(self) -> int:
        """Elements of a token's x, and of its gate z."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Number of channels of the convolution: x, B and C."""
        return self.inner + 2 * self.num_groups * self.state_size

    @property
    def shards(self) -> tuple[Shard, Shard, Shard]:
        """This rank's shards of the elements of x, of those of B, and of the heads."""
        heads = self.heads or Shard(self.num_heads, ((0, self.num_heads),))
        groups = self.groups or Shard(self.num_groups, ((0, self.num_groups),))
        return heads.scaled(self.head_dim), groups.scaled(self.state_size), heads

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec:
        sizes = self.num_heads, self.head_dim, self.num_groups, self.state_size
        return recurrent_spec(self.kernel_size, self.channels, sizes, dtypes)

    def backend_config(self, options: BackendOptions) -> LinearAttentionConfig:
        return LinearAttentionConfig(
            num_heads=self.num_heads,
            num_key_heads=self.num_groups,
            key_size=self.state_size,
            value_size=self.head_dim,
            rule=Mamba2Backend.name,
            **vars(options),
        )

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        assert isinstance(backend, Mamba2Backend)
        return Mamba2(index, self, backend, options)


class GroupNorm(Layer):
    """weight * x / rms(x), x = y * silu(z), with one root mean square for each group of heads.

    In float32, as transformers computes it. Ranks that share a group add up its squares.
    """

    def __init__(self, shape: Mamba2Shape, options: LayerOptions) -> None:
        super().__init__()
        self.weight = options.parameter(shape.inner)
        self._shard, groups = shape.shards[0], shape.groups
        self._ranks, self._groups = options.tensor_parallel, groups
        self._eps = shape.norm_eps
        self._size = self._shard.whole // (groups.whole if groups else shape.num_groups)
        self._is_shared = groups is not None and groups.size * self._size != shape.inner

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """y and z [T, I] -> [T, I] of y's dtype."""
        wide = functional.silu(z.float()).mul_(y)
        by_group = wide.view(len(wide), -1, min(self._size, wide.shape[1]))
        sums = by_group.square().sum(-1, keepdim=True)
        if self._is_shared:
            sums = self._over_ranks(sums)
        by_group.mul_(sums.div_(self._size).add_(self._eps).rsqrt_())
        return wide.to(y.dtype).mul_(self.weight)

    def _over_ranks(self, sums: Tensor) -> Tensor:
        """The sums [T, 1, 1] of this rank's group, of all ranks that hold a part of it."""
        assert self._groups is not None
        everyones = sums.new_zeros(len(sums), self._groups.whole, 1)
        (first, end), *_ = self._groups.ranges
        everyones[:, first:end] = sums
        return self._ranks.all_reduce(everyones)[:, first:end].clone()

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", shard_target(RowsTarget(self.weight), self._shard)


class Mamba2(Mixer):
    """Projection, convolution, scan, and a norm by group that z gates."""

    def __init__(
        self, index: int, shape: Mamba2Shape, backend: Mamba2Backend, options: LayerOptions
    ) -> None:
        super().__init__()
        self.index, self.shape, self.backend = index, shape, backend
        inner, groups, heads = shape.shards
        parts = {"z": inner, "x": inner, "b": groups, "c": groups, "dt": heads}
        rows = {name: shard.size for name, shard in parts.items()}
        together = [Interleaved(_IN, tuple(parts), 1)]
        shards = LinearShards(parts, concatenated=True)
        bias, hidden = shape.proj_bias, shape.hidden_size
        self.in_proj = make_linear(hidden, rows, bias, options, together, shards)
        self.conv = options.parameter(shape.channels, shape.kernel_size)
        self.conv_bias = options.parameter(shape.channels) if shape.conv_bias else None
        count = shape.num_heads
        self.a_log = options.parameter(count, dtype=torch.float32)
        self.dt_bias = options.parameter(count, dtype=torch.float32)
        self.d = options.parameter(count, dtype=torch.float32)
        self.norm = GroupNorm(shape, options)
        shards = LinearShards(columns=inner)
        self.out_proj = make_linear(shape.inner, {"out_proj": hidden}, bias, options, shards=shards)

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

        Positions are not used; the states after the tokens are written to the layer's cache.
        """
        shape = self.shape
        projected = self.in_proj.normed(norm, residual, pending)
        sizes = [shape.inner, shape.channels, shape.num_heads]
        z, xbc, dt = torch.split(projected, sizes, dim=1)
        constants = self.a_log, self.dt_bias, self.d, shape.dt_limits
        weights = Mamba2Weights(self.conv, self.conv_bias, *constants)
        out = self.backend.attend(xbc, dt, self.index, weights, batch)
        return self.out_proj.add_to(residual, self.norm(out.flatten(1), z))

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        inner, groups, heads = self.shape.shards
        channels = concatenated([inner, groups, groups])
        convolution = RowsTarget(self.conv[:, None])
        yield f"{path}conv1d.weight", shard_target(convolution, channels)
        if self.conv_bias is not None:
            yield f"{path}conv1d.bias", shard_target(RowsTarget(self.conv_bias), channels)
        for name, weight in (("A_log", self.a_log), ("dt_bias", self.dt_bias), ("D", self.d)):
            yield f"{path}{name}", shard_target(RowsTarget(weight), heads)
        for name, child in self.named_children():
            yield from weight_targets(child, f"{path}{name}.")

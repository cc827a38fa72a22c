# SPDX-License-Identifier: Apache-2.0
"""Gated delta nets (arXiv 2412.06464): linear attention with a state that forgets and corrects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import (
    Backend,
    BackendOptions,
    CacheDtypes,
    CacheSpec,
    DeltaRuleWeights,
    ForwardBatch,
    GatedDeltaRuleBackend,
    LinearAttentionConfig,
    RecurrentSpec,
    cache_dtypes,
)
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.tiled_matrix import makes_tiles
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GgufBlocks
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard import Shard, concatenated
from rtp_llm.layers.weights.shard_targets import LinearShards, shard_target
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget, weight_targets
from rtp_llm.layers.weights.tiled_heads import TiledHeads

# Number of tokens whose keys and corrections a state's ring holds. A step of up to half as many
# tokens writes no state, and can be rolled back (see ops.gated_delta_rule).
RING = 16
# Elements of a value head that have a count of their own of the tokens folded into their state.
_PIECE = 8


@dataclass(frozen=True)
class GatedDeltaNetShape:
    """Sizes of one layer's gated delta net, in elements.

    `num_heads` value heads of `value_size` share `num_key_heads` heads of queries and keys of
    `key_size`; consecutive value heads share a key head. The convolution spans `kernel_size`
    tokens. `interleaved`: the checkpoint has two projections, grouped by key head; `separate_z`:
    instead of the first, one has q, k and v one after the other, and one z. `tiled_output`: columns
    of the last projection are in the order of TiledHeads, if blocks would be cut otherwise.
    `key_heads`: the model's key heads that this tensor-parallel rank holds.
    """

    hidden_size: int
    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    kernel_size: int
    norm_eps: float
    interleaved: bool = False
    separate_z: bool = False
    tiled_output: bool = False
    key_heads: Shard | None = None

    checkpoint_name: ClassVar[str] = "linear_attn"

    def on_rank(self, ranks: TensorParallel) -> GatedDeltaNetShape:
        heads = Shard.even(self.num_key_heads, ranks, "linear_num_key_heads")
        values = heads.size * (self.num_heads // self.num_key_heads)
        return replace(self, key_heads=heads, num_key_heads=heads.size, num_heads=values)

    @property
    def keys(self) -> int:
        """Number of key elements per token; the same as of query elements."""
        return self.num_key_heads * self.key_size

    @property
    def values(self) -> int:
        """Elements of a token's values."""
        return self.num_heads * self.value_size

    @property
    def channels(self) -> int:
        """Number of channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def shards(self) -> tuple[Shard, Shard, Shard]:
        """This rank's shards of the key elements, the value elements and the value heads."""
        count = self.num_key_heads
        keys = self.key_heads or Shard(count, ((0, count),))
        heads = keys.scaled(self.num_heads // count)
        return keys.scaled(self.key_size), heads.scaled(self.value_size), heads

    @property
    def channel_shard(self) -> Shard:
        """This rank's shard of the convolution channels."""
        keys, values, _ = self.shards
        return concatenated([keys, keys, values])

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec:
        sizes = self.num_heads, self.value_size, self.num_key_heads, self.key_size
        return recurrent_spec(self.kernel_size, self.channels, sizes, dtypes)

    def backend_config(self, options: BackendOptions) -> LinearAttentionConfig:
        return LinearAttentionConfig(
            num_heads=self.num_heads,
            num_key_heads=self.num_key_heads,
            key_size=self.key_size,
            value_size=self.value_size,
            **vars(options),
        )

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        assert isinstance(backend, GatedDeltaRuleBackend)
        return GatedDeltaNet(index, self, backend, options)


def recurrent_spec(
    kernel_size: int, channels: int, sizes: tuple[int, int, int, int], dtypes: CacheDtypes
) -> RecurrentSpec:
    """What is cached for a convolution of `channels` and the states of `sizes`: value heads and
    their size, key heads and theirs; in the order in which the operators take them."""
    heads, value_size, key_heads, key_size = sizes
    states = {
        "inputs": ((kernel_size - 1 + RING // 2, channels), dtypes.inputs),
        "state": ((heads, value_size, key_size), dtypes.states),
        "ring_k": ((RING, key_heads, key_size), dtypes.inputs),
        "ring_u": ((RING, heads, value_size), torch.float32),
        "ring_g": ((RING, heads), torch.float32),
        "folded": ((heads, value_size // _PIECE), torch.int32),
    }
    shapes, kinds = zip(*states.values(), strict=True)
    return RecurrentSpec(shapes, kinds, rollback=RING // 2 - 1)


def _make_projections(
    shape: GatedDeltaNetShape, options: LayerOptions
) -> tuple[Linear, Linear | None]:
    """Create one layer with the rows of queries, keys, values, z, b and a, in this order.

    If the others are quantised, b and a get a separate layer, since checkpoints keep these few rows
    as floats.
    """
    groups, hidden = shape.num_key_heads, shape.hidden_size
    keys, values, heads = shape.shards
    tensors: list[Interleaved] = []
    wide = {"in_proj_qkv": shape.channel_shard, "in_proj_z": values}
    narrow = {"in_proj_b": heads, "in_proj_a": heads}
    if shape.interleaved and not shape.separate_z:
        wide = {"q": keys, "k": keys, "v": values, "z": values}
        tensors.append(Interleaved("in_proj_qkvz", tuple(wide), groups))
    if shape.interleaved:
        narrow = {"b": heads, "a": heads}
        tensors.append(Interleaved("in_proj_ba", tuple(narrow), groups))
    held = {part for each in tensors for part in each.parts}
    names = [each.tensor for each in tensors] + [n for n in (*wide, *narrow) if n not in held]
    if options.quantization == "none" and all(options.format_of(name) is FLOAT for name in names):
        return _make_projection(hidden, wide | narrow, options, tensors), None
    return (
        _make_projection(hidden, wide, options, tensors),
        _make_projection(hidden, narrow, options.unquantized(), tensors),
    )


def _make_projection(
    hidden: int, parts: Mapping[str, Shard], options: LayerOptions, tensors: Sequence[Interleaved]
) -> Linear:
    tensors = [each for each in tensors if each.parts[0] in parts]
    rows = {name: shard.size for name, shard in parts.items()}
    return make_linear(hidden, rows, False, options, tensors, LinearShards(parts))


def _tiled_heads(shape: GatedDeltaNetShape, stored: StoredFormat) -> TiledHeads | None:
    """The order of the last projection's columns, if blocks keep them from the layers' order."""
    if not shape.tiled_output or not isinstance(stored, GgufBlocks):
        return None
    count = shape.num_key_heads
    heads = shape.key_heads or Shard(count, ((0, count),))
    cut = shape.value_size % stored.column_block != 0
    return TiledHeads(stored, heads, shape.num_heads // count, shape.value_size) if cut else None


def _keeps_blocks(shape: GatedDeltaNetShape, tiled: TiledHeads, options: LayerOptions) -> bool:
    """Whether the last projection stays in blocks: ranks cannot read columns of several places."""
    sizes = shape.hidden_size, shape.values
    kept = options.keeps("gguf_linear") or makes_tiles(*sizes, tiled.stored, options)
    return shape.key_heads is None and kept


class GatedDeltaNet(Mixer):
    """Projections, convolution, gated delta rule, and a per-head norm gated by z.

    `tiled`: the columns of the last projection are in that order in the checkpoint; they stay so if
    `keeps_tiles`, and what is projected takes it on.
    """

    def __init__(
        self,
        index: int,
        shape: GatedDeltaNetShape,
        backend: GatedDeltaRuleBackend,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.index, self.shape, self.backend = index, shape, backend
        self._z_end = shape.channels + shape.values
        self.in_proj, self.in_proj_ba = _make_projections(shape, options)
        heads = shape.num_heads
        self.conv = options.parameter(shape.channels, shape.kernel_size)
        self.a_log = options.parameter(heads, dtype=torch.float32)
        self.dt_bias = options.parameter(heads, dtype=torch.float32)
        self.norm = RMSNorm(shape.value_size, shape.norm_eps, options)
        parts = {"out_proj": shape.hidden_size}
        shards = LinearShards(columns=shape.shards[1])
        self.tiled = _tiled_heads(shape, options.format_of("out_proj"))
        self.keeps_tiles = self.tiled is not None and _keeps_blocks(shape, self.tiled, options)
        if self.tiled is not None and not self.keeps_tiles:
            options = replace(options, formats={})
        self.out_proj = make_linear(shape.values, parts, False, options, shards=shards)

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
        if self.in_proj_ba is None:
            projected = self.in_proj.normed(norm, residual, pending)
            ba = projected[:, self._z_end :]
        else:
            x = norm.after(pending, residual)
            projected, ba = self.in_proj(x), self.in_proj_ba(x)
        channels = self.shape.channels
        weights = DeltaRuleWeights(self.conv, self.a_log, self.dt_bias)
        out = self.backend.attend(projected[:, :channels], ba, self.index, weights, batch)
        gate = projected[:, channels : self._z_end].view(out.shape)
        mixed = ops.gated_rms_norm(out, gate, self.norm.weight, self.norm.eps)
        mixed = mixed.flatten(1)
        if self.tiled is not None and self.keeps_tiles:
            mixed = self.tiled.tiled(mixed)
        return self.out_proj.add_to(residual, mixed)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        heads = self.shape.shards[2]
        convolution = RowsTarget(self.conv[:, None])
        yield f"{path}conv1d.weight", shard_target(convolution, self.shape.channel_shard)
        yield f"{path}A_log", shard_target(RowsTarget(self.a_log), heads)
        yield f"{path}dt_bias", shard_target(RowsTarget(self.dt_bias), heads)
        for name, child in self.named_children():
            if child is self.out_proj and self.tiled is not None and not self.keeps_tiles:
                for _, target in self.out_proj.part_targets(name, 0):
                    yield f"{path}{name}.{BLOCKS}", self.tiled.float_target(target)
            else:
                yield from weight_targets(child, f"{path}{name}.")

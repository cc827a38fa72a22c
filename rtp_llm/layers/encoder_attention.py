# SPDX-License-Identifier: Apache-2.0
"""Attention both ways over whole prompts, without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import Backend, BackendOptions, CacheDtypes, ForwardBatch
from rtp_llm.layers.attention_heads import AttentionHeads
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import concatenated
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards
from rtp_llm.layers.weights.targets import WeightTarget, weight_targets


@dataclass(frozen=True)
class EncoderAttentionShape(AttentionHeads):
    """Sizes of one layer's attention.

    `window`: a token sees those at most so many tokens away; 0: all of them. `scale` multiplies
    products of queries and keys. `bias`: of the query, key and value projections. `parts` are the
    names of these projections in a checkpoint, or the one name of all three.
    """

    scale: float
    window: int = 0
    bias: bool = True
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    norm_eps: float | None = None
    norm_offset: float = 0.0
    output_bias: bool = False

    checkpoint_name: ClassVar[str] = "self_attn"

    def cache_spec(self, dtypes: CacheDtypes) -> None:
        return None

    def backend_config(self, options: BackendOptions) -> None:
        return None

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        return EncoderMixer(self, options)

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each projection on this rank."""
        sizes = [n * self.head_dim for n in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        if len(self.parts) == 1:
            return {self.parts[0]: sum(sizes)}
        return dict(zip(self.parts, sizes, strict=True))

    @property
    def input_shards(self) -> LinearShards:
        """The part of each projection that this rank holds."""
        if (channels := self.channel_shards) is None:
            return WHOLE
        queries, keys = channels
        if len(self.parts) == 1:
            return LinearShards({self.parts[0]: concatenated([queries, keys, keys])})
        return LinearShards(dict(zip(self.parts, (queries, keys, keys), strict=True)))


class EncoderMixer(Mixer):
    """The attention of a pre-norm layer that reads both ways."""

    def __init__(self, shape: EncoderAttentionShape, options: LayerOptions) -> None:
        super().__init__()
        self.mix = EncoderAttention(shape, options)
        parts, bias = {"o_proj": shape.hidden_size}, shape.output_bias
        mixed, shards = shape.num_heads * shape.head_dim, shape.output_shards
        self.o_proj = make_linear(mixed, parts, bias, options, shards=shards)

    def cache_spec(self) -> None:
        return None

    def forward(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.add_to."""
        mixed = self.mix(norm.after(pending, residual), batch, cos_sin)
        return self.o_proj.add_to(residual, mixed)

    def alone(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """`forward` without adding anything to the residual but `pending`."""
        mixed = self.mix(norm.after(pending, residual), batch, cos_sin)
        return self.o_proj(mixed)  # type: ignore[no-any-return]


class EncoderAttention(Layer):
    """The projections to queries, keys and values, rotation, and attention; without the last
    projection."""

    q_norm: RMSNorm | None
    k_norm: RMSNorm | None

    def __init__(self, shape: EncoderAttentionShape, options: LayerOptions) -> None:
        """`options` are inside the layer in which a checkpoint has the projections."""
        super().__init__()
        self.shape = shape
        self.qkv = make_linear(
            shape.hidden_size, shape.rows, shape.bias, options, shards=shape.input_shards
        )
        self.q_norm = self.k_norm = None
        if shape.norm_eps is not None:
            size, eps, offset = shape.head_dim, shape.norm_eps, shape.norm_offset
            self.q_norm = RMSNorm(size, eps, options, offset)
            self.k_norm = RMSNorm(size, eps, options, offset)

    def forward(
        self,
        x: Tensor,
        batch: ForwardBatch,
        cos_sin: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """x [T, hidden] -> [T, heads * head_dim]. `cos_sin` as that of ops.rope_kv_write; None: no
        rotation. `bias` as that of ops.varlen_attention."""
        shape = self.shape
        heads, kv_heads, size = shape.num_heads, shape.num_kv_heads, shape.head_dim
        qkv = self.qkv(x)
        if self.q_norm is not None and self.k_norm is not None:
            q_norm, k_norm = self.q_norm, self.k_norm
            ops.qk_rms_norm(
                qkv, q_norm.weight, k_norm.weight, heads, kv_heads, q_norm.eps, q_norm.offset
            )
        if cos_sin is not None:
            ops.rope_kv_write(
                qkv, batch.positions, cos_sin, None, None, heads, kv_heads, size, True
            )
        tokens = qkv.shape[0]  # len and split are functions in Python, called for every layer
        by_head = qkv.view(tokens, heads + 2 * kv_heads, size)
        query, key, value = by_head.split_with_sizes((heads, kv_heads, kv_heads), 1)
        lengths = batch.cu_seqlens_q, batch.max_seqlen_q
        mixed = ops.varlen_attention(query, key, value, *lengths, shape.scale, shape.window, bias)
        return mixed.view(tokens, heads * size)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        parent = path.rstrip(".").rpartition(".")[0]
        for name, child in self.named_children():
            yield from weight_targets(child, f"{parent}.{name}.")

# SPDX-License-Identifier: Apache-2.0
"""Attention of Gemma 4: values have a norm too, and the last layers read the keys and values of
earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtp_llm.attention import (
    AttentionBackend,
    Backend,
    CacheDtypes,
    CacheSpec,
    ForwardBatch,
    Rotation,
    normalize_heads,
)
from rtp_llm.layers.attention import AttentionLayer, AttentionShape
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards


@dataclass(frozen=True)
class NormedValueShape(AttentionShape):
    """Attention whose values have an RMS norm without weights; its queries and keys have norms.

    `keys_as_values`: values are the projected keys, before their norm and rotation.
    """

    keys_as_values: bool = False

    @property
    def parts(self) -> dict[str, int]:
        parts = super().parts
        if self.keys_as_values:
            del parts["v_proj"]
        return parts

    def make(
        self, index: int, backend: Backend[Any] | None, options: LayerOptions
    ) -> NormedValueAttention:
        assert isinstance(backend, AttentionBackend)
        return NormedValueAttention(index, self, backend, options)


class NormedValueAttention(AttentionLayer):
    """Attention of layer `index` that normalises its values before they are stored."""

    ones: Tensor

    def __init__(
        self, index: int, shape: NormedValueShape, backend: AttentionBackend, options: LayerOptions
    ) -> None:
        super().__init__(index, shape, backend, options)
        self._keys_as_values = shape.keys_as_values
        weight = torch.ones(shape.head_dim, dtype=options.dtype, device=options.device)
        self.register_buffer("ones", weight, persistent=False)

    def _mix(self, qkv: Tensor, cos_sin: Tensor | None, batch: ForwardBatch) -> Tensor:
        shape = self.shape
        first = shape.num_heads + shape.num_kv_heads
        projected = qkv
        if self._keys_as_values:
            qkv = projected.new_empty(len(qkv), self.qkv_size)
            qkv[:, : projected.shape[1]] = projected
        heads = qkv.view(len(qkv), first + shape.num_kv_heads, shape.head_dim)
        keys, values = heads[:, shape.num_heads : first], heads[:, first:]
        assert self.k_norm is not None, "keys have a norm"
        given = keys if self._keys_as_values else values
        normalize_heads(given, values, self.ones, self.k_norm.eps)
        return super()._mix(qkv, cos_sin, batch)


@dataclass(frozen=True)
class SharedKvShape(AttentionShape):
    """Attention over the keys and values of the earlier layer `source`; it caches nothing."""

    source: int = 0

    @property
    def input_shards(self) -> LinearShards:
        channels = self.channel_shards
        return WHOLE if channels is None else LinearShards({"q_proj": channels[0]})

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec | None:  # type: ignore[override]
        return None

    def make(  # type: ignore[override]
        self, index: int, backend: Backend[Any] | None, options: LayerOptions
    ) -> SharedKvAttention:
        assert isinstance(backend, AttentionBackend)
        return SharedKvAttention(self, backend, options)


class SharedKvAttention(Mixer):
    """Attention that has queries alone; `backend` is that of the layer whose keys it reads."""

    def __init__(
        self, shape: SharedKvShape, backend: AttentionBackend, options: LayerOptions
    ) -> None:
        super().__init__()
        self.shape, self.backend = shape, backend
        size, parts = shape.num_heads * shape.head_dim, {"o_proj": shape.hidden_size}
        self.q_proj = make_linear(
            shape.hidden_size,
            {"q_proj": size},
            shape.qkv_bias,
            options,
            shards=shape.input_shards,
        )
        self.o_proj = make_linear(
            size, parts, shape.output_bias, options, shards=shape.output_shards
        )
        assert shape.norm_eps is not None, "queries have a norm"
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps, options)

    def cache_spec(self) -> None:
        return None

    def alone(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """Apply the layer to norm(residual + pending) [T, hidden], without adding the result."""
        q = self.q_proj.normed(norm, residual, pending)
        rotation = Rotation(cos_sin, self.q_norm.weight, eps=self.q_norm.eps)
        shape = self.shape
        mixed = self.backend.attend_shared(q, shape.source, shape.window, batch, rotation)
        return self.o_proj(mixed)  # type: ignore[no-any-return]

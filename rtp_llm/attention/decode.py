# SPDX-License-Identifier: Apache-2.0
"""Decode steps: one kernel for everything between a layer's two matrix products."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import AttentionBackend, AttentionConfig, PartialBackend
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.cache_scales import tensors_of
from rtp_llm.attention.rotation import Rotation
from rtp_llm.device import Support

_OPERATOR = "decode_attention"
_MAX_GROUP = {64: 16, 128: 16, 256: 8}  # by head size
_LEAST_BLOCK = 8
_MAX_ITEMS = 1 << 16  # sequences times KV heads


class DecodeBackend(PartialBackend):
    """Steps in which every sequence has one new token; all others go to another backend."""

    name: ClassVar[str] = "decode"
    priority: ClassVar[int] = 0  # never competes: it is stacked on the chosen backend

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        group, block = config.num_heads // config.num_kv_heads, config.block_size
        max_group = _MAX_GROUP.get(config.head_dim, 0)
        if "mma" not in config.capabilities:
            return Support.no("it needs the mma and cp.async instructions of Ampere GPUs or newer")
        if not ops.has_kernel(_OPERATOR, config.capabilities.torch_type):
            return Support.no(f"the operator library has no {_OPERATOR}")
        if config.dtype not in (torch.bfloat16, torch.float16):
            return Support.no(f"{config.dtype} products do not run on tensor cores")
        if config.kv_dtype not in (config.dtype, torch.float8_e4m3fn):
            return Support.no(f"the kernel reads no cache of {config.kv_dtype}")
        if group > max_group:
            sizes = ", ".join(
                f"{size} in groups up to {max_group}" for size, max_group in _MAX_GROUP.items()
            )
            return Support.no(f"{group} heads of {config.head_dim} share keys; it has {sizes}")
        if block < _LEAST_BLOCK or block & (block - 1):
            return Support.no(f"blocks of {block}; it takes powers of two from {_LEAST_BLOCK} on")
        if config.sinks or not config.causal:
            return Support.no("it has no attention sinks, and one token sees no later ones")
        return Support.yes()

    def __init__(self, config: AttentionConfig, others: AttentionBackend) -> None:
        super().__init__(config, others)
        self._counters: Tensor | None = None

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self.others.forward(q, layer, window, batch, sinks)

    def warm_up(self, kv_cache: Tensor) -> None:
        self._zeros(kv_cache.device)
        super().warm_up(kv_cache)

    def attend(
        self,
        qkv: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        rotation: Rotation,
        sinks: Tensor | None = None,
    ) -> Tensor:
        sequences = batch.seq_lens.shape[0]
        is_decode = batch.max_seqlen_q == 1 and qkv.shape[0] == sequences
        if not is_decode or sequences * self.config.num_kv_heads > _MAX_ITEMS:
            return self.others.attend(qkv, layer, window, batch, rotation, sinks)
        batch.wait_for_layer(layer)
        group = batch.layer_group[layer]
        cos_sin, q_weight, k_weight, eps, is_neox, offset, norm_offset = rotation
        mixed = ops.decode_attention(
            qkv,
            batch.kv_cache[layer],
            self._zeros(qkv.device),
            batch.positions,
            batch.seq_lens,
            batch.slot_mapping[group],
            batch.block_table[group],
            self.scale,
            cos_sin,
            q_weight,
            k_weight,
            eps,
            norm_offset,
            is_neox,
            offset,
            window,
            self.config.soft_cap,
            *tensors_of(self._scales.get(layer)),
            # A step's numbers are copied before its kernels; no other writes this layer's cache.
            early=True,
        )
        batch.layer_written(layer)
        return mixed

    def _zeros(self, device: torch.device) -> Tensor:
        """Zeros shared by all layers, which run in sequence; allocated before graph capture."""
        if self._counters is None:
            self._counters = torch.zeros(_MAX_ITEMS, dtype=torch.int32, device=device)
        return self._counters

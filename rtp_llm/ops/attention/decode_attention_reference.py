# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of decode_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.ops.rope.fused_rope_reference import rotate_and_store_reference


def decode_attention_reference(
    qkv: Tensor,
    kv_cache: Tensor,
    counters: Tensor,
    positions: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_table: Tensor,
    scale: float,
    cos_sin: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    is_neox: bool = True,
    rotary_offset: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    early: bool = False,
) -> Tensor:
    """See rtp_llm.ops.decode_attention; attention is in float64."""
    kv_heads, dim = kv_cache.shape[3:]
    heads = qkv.view(len(qkv), -1, dim)
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    slots = kv_cache.shape[1] * kv_cache.shape[2]
    live = (seq_lens > 0) & (slot_mapping >= 0) & (slot_mapping < slots)
    if cos_sin is not None:
        live = live & (positions >= 0) & (positions < len(cos_sin))
    turned = q.clone()
    rotate_and_store_reference(
        q,
        k,
        v,
        turned,
        None,
        None,
        q_weight,
        k_weight,
        eps,
        norm_offset,
        cos_sin,
        positions,
        None,
        None,
        None,
        torch.where(live, slot_mapping, -1),
        kv_cache[0],
        kv_cache[1],
        k_scale,
        v_scale,
        None,
        is_neox,
        rotary_offset,
        0,
        0,
        False,
        0,
        0,
    )
    wide = _widened(kv_cache, k_scale, v_scale)
    starts = torch.arange(len(qkv) + 1, dtype=torch.int32, device=qkv.device)
    keys = torch.where(live, seq_lens, 0)
    most = int(keys.max()) if len(keys) else 0
    lengths = (starts, keys, block_table, 1, most, scale)
    out = paged_attention_reference(turned.double(), wide, *lengths, True, window, soft_cap)
    return out.to(qkv.dtype).flatten(1)


def _widened(kv_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> Tensor:
    wide = kv_cache.double()
    for plane, scale in zip(wide, (k_scale, v_scale), strict=True):
        if scale is not None:
            plane.mul_(scale.double())
    return wide

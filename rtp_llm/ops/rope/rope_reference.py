# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the rotary embedding with the cache write."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_heads(heads: Tensor, rows: Tensor, is_neox: bool) -> Tensor:
    """heads [T, H, R] turned by rows [T, R] of the cos/sin table."""
    cos, sin = (half.unsqueeze(1) for half in rows.chunk(2, dim=-1))
    wide = heads if heads.dtype == torch.float64 else heads.float()
    a, b = wide.chunk(2, dim=-1) if is_neox else (wide[..., 0::2], wide[..., 1::2])
    first, second = a * cos - b * sin, b * cos + a * sin
    if is_neox:
        return torch.cat((first, second), dim=-1).to(heads.dtype)
    return torch.stack((first, second), dim=-1).flatten(-2).to(heads.dtype)


def rope_kv_write_reference(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    kv_cache: Tensor | None,
    slot_mapping: Tensor | None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    is_neox: bool,
    rotary_offset: int = 0,
) -> None:
    """Plain PyTorch reference of `ops.rope_kv_write`: same arguments and results."""
    if (kv_cache is None) != (slot_mapping is None):
        raise RuntimeError("rope_kv_write: kv_cache and slot_mapping go together")
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
    keys_end = num_heads + num_kv_heads
    if cos_sin is not None:
        turned = heads[:, :keys_end, rotary_offset : rotary_offset + cos_sin.shape[1]]
        turned.copy_(rotate_heads(turned, cos_sin[positions.long()], is_neox))
    if kv_cache is not None and slot_mapping is not None:
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        slots = slot_mapping[kept].long()
        block, place = slots // kv_cache.shape[2], slots % kv_cache.shape[2]
        kv_cache[0, block, place] = heads[kept, num_heads:keys_end]
        kv_cache[1, block, place] = heads[kept, keys_end:]

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of multi-head latent attention."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.attention.paged_attention_reference import (
    paged_attention_reference,
)
from rtp_llm.ops.rope.rope_reference import rotate_heads


def mla_rotate_and_store_reference(
    q: Tensor,
    q_out: Tensor,
    kv: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos_sin: Tensor | None,
    positions: Tensor,
    cache: Tensor,
    slots: Tensor,
    is_neox: bool = False,
) -> None:
    """See rtp_llm.ops.mla_rotate_and_store. float64 inputs are computed in float64."""
    wide = torch.float64 if kv.dtype == torch.float64 else torch.float32
    latent, key = kv[:, : norm_weight.shape[0]], kv[:, norm_weight.shape[0] :]
    latent = latent.to(wide)
    inverse = torch.rsqrt(latent.square().mean(dim=1, keepdim=True) + eps)
    normed = (latent * inverse * norm_weight.to(wide)).to(kv.dtype)
    if cos_sin is None:
        q_out.copy_(q)
    else:
        rows = cos_sin[positions.long()]
        q_out.copy_(rotate_heads(q, rows, is_neox))
        key = rotate_heads(key.unsqueeze(1), rows, is_neox).squeeze(1)
    kept = (slots >= 0).nonzero().squeeze(1)
    places = slots[kept].long()
    block, place = places // cache.shape[1], places % cache.shape[1]
    cache[block, place] = torch.cat((normed, key), dim=1)[kept]


def mla_attention_reference(
    q: Tensor,
    cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    latent_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
) -> Tensor:
    """See rtp_llm.ops.mla_attention: paged attention with one head and its keys as values."""
    planes = cache[None, :, :, None].expand(2, -1, -1, -1, -1)
    lengths = (cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k)
    return paged_attention_reference(q, planes, *lengths, scale)[..., :latent_size].contiguous()


def mla_decode_reference(
    q: Tensor,
    cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    latent_size: int,
    max_seqlen_k: int,
    scale: float,
) -> Tensor:
    """Plain PyTorch reference of `ops.mla_decode`: same arguments and results."""
    lengths = (cu_seqlens_q, seq_lens, block_table, latent_size, 1, max_seqlen_k)
    return mla_attention_reference(q, cache, *lengths, scale)

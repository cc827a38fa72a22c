# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of paged attention."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention_reference(
    q: Tensor,
    kv_cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.paged_attention. float64 inputs are computed in float64."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    starts = cu_seqlens_q.tolist()
    for b, num_keys in enumerate(seq_lens.tolist()):
        first, last = starts[b], starts[b + 1]
        if first == last or num_keys == 0:
            continue
        positions = torch.arange(num_keys - (last - first), num_keys, device=q.device)
        k, v, present = _gather(kv_cache, block_table[b], num_keys)
        mask = _mask(positions, present, causal=causal, window=window)
        out[first:last] = _attend(q[first:last], k, v, mask, scale, soft_cap, sinks)
    return out


def _gather(kv_cache: Tensor, row: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values [Hk, K, D] of a sequence, zero where it has no block, and which are there."""
    block_size = kv_cache.shape[2]
    position = torch.arange(num_keys, device=kv_cache.device)
    block = row.long()[position // block_size]
    present = block >= 0
    picked = kv_cache[:, block.clamp(min=0), position % block_size]
    picked = torch.where(present[None, :, None, None], picked, 0)
    k, v = picked.transpose(1, 2)
    return k, v, present


def _mask(positions: Tensor, present: Tensor, *, causal: bool, window: int) -> Tensor:
    """[queries, keys]: which keys a query sees."""
    distance = positions[:, None] - torch.arange(len(present), device=positions.device)
    mask = present.expand(distance.shape)
    if causal:
        mask = mask & (distance >= 0)
    if window > 0:
        mask = mask & (distance < window)
    return mask


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    soft_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    tokens, heads, dim = q.shape
    grouped = q.to(wide).reshape(tokens, k.shape[0], -1, dim).permute(1, 2, 0, 3)
    scores = scale * grouped @ k.to(wide).transpose(1, 2)[:, None]
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    sink = None
    if sinks is not None:
        sink = sinks.to(wide).reshape(k.shape[0], -1, 1, 1)
        top = torch.maximum(top, sink)
    # A query that sees nothing has no maximum: its weights stay zero.
    top = top.masked_fill(top == -torch.inf, 0)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    result = weights @ v.to(wide)[:, None] / total.masked_fill(total == 0, 1)
    return result.permute(2, 0, 1, 3).reshape(tokens, heads, dim).to(q.dtype)

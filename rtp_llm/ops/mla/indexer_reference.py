# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the lightning indexer."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.rope.rope_reference import rotate_heads


def indexer_rotate_and_store_reference(
    q: Tensor,
    k: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slots: Tensor,
    is_neox: bool = True,
) -> None:
    """See rtp_llm.ops.indexer_rotate_and_store. float64 inputs are computed in float64."""
    wide = torch.float64 if k.dtype == torch.float64 else torch.float32
    size = cos_sin.shape[1]
    rows = cos_sin[positions.long()]
    q[..., :size] = rotate_heads(q[..., :size], rows, is_neox)
    affine = norm_weight.to(wide), norm_bias.to(wide)
    normed = torch.nn.functional.layer_norm(k.to(wide), norm_weight.shape, *affine, eps).to(k.dtype)
    normed[:, :size] = rotate_heads(normed[:, None, :size], rows, is_neox).squeeze(1)
    kept = (slots >= 0).nonzero().squeeze(1)
    places = slots[kept].long()
    cache[places // cache.shape[1], places % cache.shape[1]] = normed[kept]


def paged_mqa_logits_reference(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    sequences: Tensor,
    visible: Tensor,
    block_table: Tensor,
    width: int,
) -> Tensor:
    """See rtp_llm.ops.paged_mqa_logits. float64 inputs are computed in float64."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.full((len(q), width), float("-inf"), dtype=wide, device=q.device)
    for token, (sequence, count) in enumerate(
        zip(sequences.tolist(), visible.tolist(), strict=True)
    ):
        if sequence < len(block_table):
            slots = key_slots(block_table[sequence], count, cache.shape[1])
            products = q[token].to(wide) @ cache.flatten(0, 1)[slots].to(wide).T
            out[token, :count] = weights[token].to(wide) @ products.relu()
    return out


def top_k_slots_reference(
    logits: Tensor,
    sequences: Tensor,
    visible: Tensor,
    block_table: Tensor,
    num_blocks: int,
    block_size: int,
    top_k: int,
) -> tuple[Tensor, Tensor]:
    """Plain PyTorch reference of `ops.top_k_slots`: same arguments and results."""
    slots = sequences.new_full((len(logits), top_k), -1)
    counts = torch.zeros_like(sequences)
    for token, (sequence, count) in enumerate(
        zip(sequences.tolist(), visible.tolist(), strict=True)
    ):
        if sequence < len(block_table):
            order = logits[token, :count].sort(descending=True, stable=True).indices
            best = order[:top_k].sort().values
            counts[token] = len(best)
            slots[token, : len(best)] = key_slots(block_table[sequence], count, block_size)[best]
    return slots, counts


def key_slots(blocks: Tensor, count: int, block_size: int) -> Tensor:
    """The slots int64 [count] of the first `count` keys of a sequence with these blocks."""
    keys = torch.arange(count, device=blocks.device)
    return blocks[keys // block_size].long() * block_size + keys % block_size

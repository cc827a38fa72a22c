# SPDX-License-Identifier: Apache-2.0
"""Attention both ways with a bias of scores by relative position, prompt by prompt."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rtp_llm.attention import ForwardBatch


def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, batch: ForwardBatch, scale: float, bias: Tensor
) -> Tensor:
    """Softmax of scale * query @ key.T + bias within each prompt, times value.

    query, key, value [T, heads, D]; bias [heads, 2 L - 1] of their dtype, by key - query + L - 1,
    for prompts of at most L tokens. Returns [T, heads, D], contiguous.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    ends = batch.cu_seqlens_q if batch.host is None else batch.host.cu_seqlens_q
    zero = bias.shape[1] // 2
    for begin, end in pairwise(ends.tolist()):
        length = end - begin
        near = bias[:, zero - length + 1 : zero + length]
        by_query = near.unfold(1, length, 1).flip(1)  # the last query's keys come first
        q, k, v = (x[begin:end].transpose(0, 1)[None] for x in (query, key, value))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=by_query[None], scale=scale)
        out[begin:end] = mixed[0].transpose(0, 1)
    return out

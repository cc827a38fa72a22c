# SPDX-License-Identifier: Apache-2.0
"""Attention over the paged KV cache: one contract for prefill, chunks, decode and mixtures."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator
def paged_attention(
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
    """softmax(scale * q k^T) v for every query token; keys and values are read in place.

    q [T, H, D] of any float dtype (token and head strides are free); kv_cache [2, N, S, Hk, D] of
    the same dtype, which already holds the keys of the query tokens; cu_seqlens_q int32 [B + 1];
    seq_lens int32 [B], the number of keys of each sequence; block_table int32 [B, M], negative = no
    block. Query i of sequence b is at position seq_lens[b] - (number of its queries) + i.

    causal: a query sees no later key. window > 0: a query only sees keys less than `window`
    positions before it. soft_cap > 0: scores become soft_cap * tanh(score / soft_cap). sinks
    float32 [H]: one extra logit per head, without a value. Blocks outside the window and negative
    ones are never read.

    Returns [T, H, D], contiguous; zeros for queries that see no key and for tokens past
    cu_seqlens_q[B]. RuntimeError on a mismatch of shapes, lengths or block ids.
    """
    return q.new_empty(q.shape)

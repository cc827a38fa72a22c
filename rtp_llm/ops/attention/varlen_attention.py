# SPDX-License-Identifier: Apache-2.0
"""Attention of encoders: every sequence of a batch over itself, both ways, without a KV cache."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator
def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: IndexTensor,
    max_seqlen: int,
    scale: float,
    window: int = 0,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale * query key^T + bias) value within each sequence, for tokens packed without
    padding.

    query [T, H, D] of any float dtype, with D a multiple of 8 from 16 to 256; key and value
    [T, Hk, D] of the same dtype, H a multiple of Hk. Strides of tokens and heads are free, but key
    and value have the same ones: views of one projection will do. cu_seqlens int32 [B + 1]:
    sequence b has the tokens from cu_seqlens[b] to cu_seqlens[b + 1], at most max_seqlen of them.
    window > 0: query i sees key j where |i - j| <= window; 0: all keys of its sequence. bias
    float32 [H, 2 L - 1], contiguous, with L >= max_seqlen: head h adds bias[h, j - i + L - 1].

    Returns [T, H, D], contiguous; zeros from token cu_seqlens[B] on. A sequence gives the same bits
    alone as in any batch. RuntimeError on a mismatch, on the CPU also of the lengths.
    """
    return query.new_empty(query.shape)

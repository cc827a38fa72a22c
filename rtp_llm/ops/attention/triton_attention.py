# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(triton="attention.paged_attention:paged_attention")
def triton_paged_attention(
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
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """paged_attention in Triton, without synchronisation; block ids out of range count as no block.

    The cache may be float8_e4m3fn; its keys and values were divided by k_scale and v_scale, one
    float32 each; give both or neither. ValueError if shapes or dtypes do not fit.
    """
    return q.new_empty(q.shape)

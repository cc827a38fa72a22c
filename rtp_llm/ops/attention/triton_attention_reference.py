# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of paged attention in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.attention.paged_attention_reference import paged_attention_reference


def triton_paged_attention_reference(
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
    """Plain PyTorch reference of `ops.triton_paged_attention`: same arguments and results."""
    if kv_cache.dtype != q.dtype:
        kv_cache = kv_cache.to(q.dtype)
    if k_scale is not None and v_scale is not None:
        kv_cache = kv_cache * torch.stack((k_scale, v_scale)).view(2, 1, 1, 1, 1).to(q.dtype)
    lengths = (cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k)
    return paged_attention_reference(q, kv_cache, *lengths, scale, causal, window, soft_cap, sinks)

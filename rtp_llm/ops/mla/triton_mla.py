# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention in Triton."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(triton="mla.mla_attention:mla_attention")
def triton_mla_attention(
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
    """mla_attention in Triton, without synchronisation; block ids out of range count as no block.

    ValueError if shapes do not fit.
    """
    return q.new_empty(*q.shape[:2], latent_size)


@operator(triton="mla.mla_attention:expanded_attention")
def triton_expanded_attention(
    q: Tensor,
    keys: Tensor,
    expanded: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    starts: Tensor,
    value_size: int,
    scale: float,
) -> Tensor:
    """Causal attention of q [T, h, Dn + P] over expanded keys and values: [T, h, Dv].

    Row starts[b] + i of keys [K, P] and expanded [K, h, Dn + Dv] is key i of sequence b; Dv is
    value_size, lengths are as for `paged_attention`. Shapes are not checked.
    """
    return q.new_empty(*q.shape[:2], value_size)

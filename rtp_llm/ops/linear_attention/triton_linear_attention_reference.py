# SPDX-License-Identifier: Apache-2.0
"""The plain PyTorch reference of the gated delta rule over prompts."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.linear_attention.linear_attention_reference import gated_delta_rule_reference


def triton_gated_delta_chunks_reference(
    qkv: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    ring_k: Tensor,
    ring_u: Tensor,
    ring_g: Tensor,
    folded: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
) -> None:
    """Plain PyTorch reference of `ops.triton_gated_delta_chunks`: same arguments and results."""
    states = state, ring_k, ring_u, ring_g, folded
    counts = cu_seqlens_q.diff()
    for b, (first, count) in enumerate(zip(cu_seqlens_q.tolist(), counts.tolist(), strict=False)):
        if count <= ring_k.shape[1] // 2:
            continue
        rows, of = slice(first, first + count), slice(b, b + 1)
        indices = cu_seqlens_q[b : b + 2] - first, seq_lens[of], state_read[of], state_write[of]
        inputs = qkv[rows], ba[rows], a_log, dt_bias
        out[rows] = gated_delta_rule_reference(*inputs, *states, *indices, count)

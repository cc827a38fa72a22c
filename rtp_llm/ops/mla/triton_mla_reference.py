# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of multi-head latent attention in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.mla.mla_reference import mla_attention_reference

triton_mla_attention_reference = mla_attention_reference


def triton_expanded_attention_reference(
    q: Tensor,
    keys: Tensor,
    expanded: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    starts: Tensor,
    value_size: int,
    scale: float,
) -> Tensor:
    """See rtp_llm.ops.triton_expanded_attention; sums are float32 at least."""
    heads, nope = q.shape[1], q.shape[2] - keys.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros(*q.shape[:2], value_size)
    bounds = cu_seqlens_q.tolist()
    for sequence, (length, first) in enumerate(
        zip(seq_lens.tolist(), starts.tolist(), strict=True)
    ):
        begin, end = bounds[sequence : sequence + 2]
        rows = slice(first, first + length)
        rope = keys[rows, None].expand(-1, heads, -1)
        all_keys = torch.cat([expanded[rows, :, :nope], rope], dim=-1).to(wide)
        scores = torch.einsum("thd,khd->htk", q[begin:end].to(wide), all_keys) * scale
        places = torch.arange(length - (end - begin), length, device=q.device)
        seen = torch.arange(length, device=q.device) <= places[:, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num()
        values = expanded[rows, :, nope:].to(wide)
        out[begin:end] = torch.einsum("htk,khd->thd", weights, values).to(q.dtype)
    return out

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the attention of encoders."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def varlen_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    window: int = 0,
    bias: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.varlen_attention. float64 inputs are computed in float64."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    group = query.shape[1] // key.shape[1]
    for first, last in itertools.pairwise(cu_seqlens.tolist()):
        q, k, v = (x[first:last].to(wide).transpose(0, 1) for x in (query, key, value))
        scores = scale * q @ k.repeat_interleave(group, 0).transpose(1, 2)
        position = torch.arange(last - first, device=query.device)
        distance = position - position[:, None]
        if bias is not None:
            scores = scores + bias[:, distance + bias.shape[1] // 2]
        if window > 0:
            scores = scores.masked_fill(distance.abs() > window, -torch.inf)
        result = scores.softmax(dim=-1) @ v.repeat_interleave(group, 0)
        out[first:last] = result.transpose(0, 1).to(query.dtype)
    return out

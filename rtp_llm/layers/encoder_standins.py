# SPDX-License-Identifier: Apache-2.0
"""Operators of encoders in plain PyTorch."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
    window: int = 0,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention both ways in each of B sequences."""
    out = torch.empty(query.shape, dtype=query.dtype)
    starts = cu_seqlens.tolist()
    groups = query.shape[1] // key.shape[1]
    for begin, end in itertools.pairwise(starts):
        q, k, v = (x[begin:end].transpose(0, 1).float() for x in (query, key, value))
        k, v = (x.repeat_interleave(groups, 0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * scale
        places = torch.arange(end - begin)
        if bias is not None:
            scores += bias[:, places[None, :] - places[:, None] + bias.shape[1] // 2]
        if window:
            far = (places[:, None] - places[None, :]).abs() > window
            scores.masked_fill_(far, -torch.inf)
        out[begin:end] = (scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype)
    return out


def embedding_sum(
    ids: Tensor,
    positions: Tensor,
    types: Tensor | None,
    table: Tensor,
    position_table: Tensor | None,
    type_table: Tensor | None,
) -> Tensor:
    """The sum of rows of up to three tables."""
    total = table[ids.long()]
    if type_table is not None:
        total = total + (type_table[0] if types is None else type_table[types.long()])
    if position_table is not None:
        total = total + position_table[positions.long()]
    return total


def gelu(x: Tensor) -> Tensor:
    """Exact GELU, elementwise: returns a new tensor with the shape and dtype of x."""
    return functional.gelu(x)

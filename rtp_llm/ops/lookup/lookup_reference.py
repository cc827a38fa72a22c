# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of what looks something up."""

from __future__ import annotations

import torch
from torch import Tensor


def embedding_reference(ids: Tensor, table: Tensor) -> Tensor:
    """Plain PyTorch reference of `ops.embedding`: same arguments and results."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.shape[0]):
        raise IndexError(f"embedding: ids outside the {table.shape[0]} rows of the table")
    return table.index_select(0, ids)


def substitute_tokens_reference(ids: Tensor, previous: Tensor) -> None:
    """Plain PyTorch reference of `ops.substitute_tokens`: same arguments and results."""
    if ids.numel() and -int(ids.min()) > len(previous):
        raise IndexError(f"substitute_tokens: ids name rows beyond the {len(previous)} of previous")
    named = ids < 0
    rows = torch.where(named, -1 - ids, 0)
    if len(previous):
        ids.copy_(torch.where(named, previous.index_select(0, rows).clamp_min(0), ids))

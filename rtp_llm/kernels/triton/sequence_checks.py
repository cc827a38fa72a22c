# SPDX-License-Identifier: Apache-2.0
"""Checks of lengths and block tables that both kinds of attention share."""

from __future__ import annotations

import torch
from torch import Tensor


def check_sequences(cu_seqlens_q: Tensor, seq_lens: Tensor, block_table: Tensor) -> None:
    """Raise ValueError if prefix sums [B + 1], lengths [B] and table [B, W] are inconsistent."""
    sequences = seq_lens.shape[0]
    if cu_seqlens_q.shape != (sequences + 1,) or block_table.shape[0] != sequences:
        raise ValueError(
            f"{sequences} sequences need {sequences + 1} prefix sums "
            f"and a block table of {sequences} rows"
        )
    for index in (cu_seqlens_q, seq_lens, block_table):
        if index.dtype != torch.int32 or index.stride(-1) != 1:
            raise ValueError("lengths and block table must be int32 without gaps")

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the best token over ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.sampling.sampling import ALL_BANNED, NOT_FINITE, SAMPLED


def best_token_reference(
    logits: Tensor,
    tokens: Tensor,
    status: Tensor,
    first: int,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
) -> None:
    """See rtp_llm.ops.best_token; of one rank."""
    if buffers.numel() != 2:
        raise RuntimeError(f"the reference is of one rank, not of {len(buffers) - 1}")
    best = logits.gather(1, tokens.long()[:, None])[:, 0]
    status.copy_(status.where((status == NOT_FINITE) | (best > -torch.inf), ALL_BANNED))
    tokens.add_(first).mul_(status == SAMPLED)

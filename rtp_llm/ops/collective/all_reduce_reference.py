# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the sums over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_norm_reference import norm_fp8_reference
from rtp_llm.ops.norm.norm_reference import rms_norm_reference


def sum_of_parts(parts: Sequence[Tensor]) -> Tensor:
    """What every rank has after all_reduce, of the ranks' `parts`; float32, not rounded yet."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total


def add_rms_norm_of_parts(
    parts: Sequence[Tensor], residual: Tensor, weight: Tensor, eps: float, norm_offset: float
) -> tuple[Tensor, Tensor]:
    """The norm and the residual that every rank has after all_reduce_add_rms_norm."""
    total = (residual.float() + sum_of_parts(parts)).to(residual.dtype)
    return rms_norm_reference(total, weight, eps, norm_offset), total


def _only_part(x: Tensor, buffers: Tensor) -> list[Tensor]:
    """What is in the memory of other ranks' devices, PyTorch cannot read by its address."""
    if buffers.numel() != 2:
        raise RuntimeError(f"the reference sums the part of one rank, not of {len(buffers) - 1}")
    return [x]


def all_reduce_reference(
    x: Tensor,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """See rtp_llm.ops.all_reduce; of one rank."""
    x.copy_(sum_of_parts(_only_part(x, buffers)))


def all_reduce_add_rms_norm_reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """See rtp_llm.ops.all_reduce_add_rms_norm; of one rank."""
    parts = _only_part(x, buffers)
    normed, total = add_rms_norm_of_parts(parts, residual, weight, eps, norm_offset)
    residual.copy_(total)
    x.copy_(normed)


def all_reduce_add_rms_norm_fp8_reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
    two_shot: bool = False,
) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.all_reduce_add_rms_norm_fp8; of one rank."""
    total = sum_of_parts(_only_part(x, buffers))
    return norm_fp8_reference(residual, total, weight, eps, norm_offset)

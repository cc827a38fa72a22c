# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of experts in MXFP4 on tensor cores."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.mxfp4_experts_layout import unpack_experts
from rtp_llm.ops.moe.triton_biased_reference import (
    triton_biased_down_reference,
    triton_biased_gate_up_reference,
)


def mxfp4_experts_gate_up_reference(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    alpha: float,
    limit: float,
) -> Tensor:
    """See rtp_llm.ops.mxfp4_experts_gate_up; all weights become floats."""
    wide = _unpacked(weight, scales, gated=True)
    return triton_biased_gate_up_reference(x, wide, bias, rows, offsets, top_k, alpha, limit)


def mxfp4_experts_down_reference(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor, offsets: Tensor
) -> Tensor:
    """See rtp_llm.ops.mxfp4_experts_down; all weights become floats."""
    rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
    return triton_biased_down_reference(
        x, _unpacked(weight, scales, gated=False), bias, rows, offsets
    )


def _unpacked(weight: Tensor, scales: Tensor, gated: bool) -> Tensor:
    return unpack_experts(weight.view(torch.uint8), scales.view(torch.uint8), gated)

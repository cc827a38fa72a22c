# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of experts with biases in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.moe_reference import grouped_linear_reference
from rtp_llm.ops.moe.mxfp4_reference import mxfp4_grouped_linear_reference, with_bias


def triton_biased_gate_up_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    alpha: float,
    limit: float,
    scales: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_biased_gate_up."""
    entries = x.float()[rows.long() // top_k]
    gate, up = _product(entries, weight, bias, offsets, scales).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(x.dtype)


def triton_biased_down_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    scales: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_biased_down."""
    return _product(x.float(), weight, bias, offsets, scales).to(x.dtype)


def _product(
    x: Tensor, weight: Tensor, bias: Tensor, offsets: Tensor, scales: Tensor | None
) -> Tensor:
    """float32 rows, with the bias of each one's expert."""
    if scales is not None:
        return mxfp4_grouped_linear_reference(x, weight, scales, offsets, bias.float())
    return with_bias(grouped_linear_reference(x, weight.float(), offsets), bias, offsets)

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of products with weights in MXFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.moe_reference import grouped_linear_reference
from rtp_llm.ops.moe.mxfp4_blocks import dequantize_rows


def mxfp4_grouped_linear_reference(
    x: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor, bias: Tensor | None = None
) -> Tensor:
    """See rtp_llm.ops.mxfp4_grouped_linear; all weights become floats."""
    experts, rows, _ = blocks.shape
    flat, exponents = (
        each.view(torch.uint8).reshape(experts * rows, -1) for each in (blocks, scales)
    )
    weight = dequantize_rows(flat, exponents)
    out = grouped_linear_reference(x.float(), weight.view(experts, rows, -1), offsets)
    return (out if bias is None else with_bias(out, bias, offsets)).to(x.dtype)


def with_bias(rows: Tensor, bias: Tensor, offsets: Tensor) -> Tensor:
    """rows [R, N] plus the bias [E, N] of each one's expert."""
    entry = torch.arange(len(rows), device=rows.device, dtype=offsets.dtype)
    expert = torch.searchsorted(offsets, entry, right=True) - 1
    return rows + bias[expert.clamp(max=len(bias) - 1)].float()

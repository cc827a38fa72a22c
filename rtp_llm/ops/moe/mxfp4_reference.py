# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of products with weights in MXFP4 and other codes of 4 bits."""

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


def table4_weights(
    codes: Tensor, scales: Tensor, table: Tensor, row_scales: Tensor | None
) -> Tensor:
    """The float32 weights [E, N, K] of ops.table4_grouped_linear."""
    packed = codes.view(torch.uint8)
    numbers = table[torch.stack((packed & 0xF, packed >> 4), -1).int()].flatten(-2)
    if row_scales is not None:
        scales = scales.view(torch.float8_e4m3fn).float() * row_scales[..., None]
    group = numbers.shape[-1] // scales.shape[-1]
    return torch.unflatten(numbers, -1, (-1, group)).mul_(scales[..., None]).flatten(-2)


def table4_grouped_linear_reference(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    table: Tensor,
    offsets: Tensor,
    row_scales: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.table4_grouped_linear; all weights become floats."""
    weight = table4_weights(codes, scales, table, row_scales)
    out = grouped_linear_reference(x.float(), weight, offsets)
    return (out if bias is None else with_bias(out, bias, offsets)).to(x.dtype)

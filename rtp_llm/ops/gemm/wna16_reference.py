# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of products with integer weights in groups, in the CPU's layout."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.gemm.wna16_layout import part_columns, unpack
from rtp_llm.ops.moe.mxfp4_reference import with_bias


def wna16_linear_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor,
    outputs: int,
    bits: int,
    group: int,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.wna16_linear`: same arguments and results."""
    result = rounded_parts(_in_order(x, order), group) @ _weight(weight, scale, zero, bits, group)
    result = result[:, :outputs]
    return (result if bias is None else result + bias.double()).to(x.dtype)


def wna16_grouped_linear_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor,
    offsets: Tensor,
    outputs: int,
    bits: int,
    group: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.wna16_grouped_linear`: same arguments and results."""
    rounded, result = rounded_parts(x, group), x.new_zeros((len(x), outputs), dtype=torch.float64)
    for expert in range(len(weight)):
        rows = slice(int(offsets[expert]), int(offsets[expert + 1]))
        numbers = _weight(weight[expert], scale[expert], zero[expert], bits, group)
        result[rows] = (rounded[rows] @ numbers)[:, :outputs]
    return (result if bias is None else with_bias(result, bias, offsets)).to(x.dtype)


def _in_order(x: Tensor, order: Tensor | None) -> Tensor:
    """x[:, order], where -1 means zeros."""
    if order is None:
        return x
    padded = torch.nn.functional.pad(x, (0, 1))
    return padded[:, order.long() % padded.shape[1]]


def _weight(weight: Tensor, scale: Tensor, zero: Tensor, bits: int, group: int) -> Tensor:
    """float64 [columns, rows]."""
    codes, scales, zeros = unpack(weight, scale, zero, bits)
    columns = torch.arange(codes.shape[1])
    group_of = columns // group if group else torch.zeros_like(columns)
    return ((codes.double() - zeros.double()[:, group_of]) * scales.double()[:, group_of]).T


def rounded_parts(x: Tensor, group: int) -> Tensor:
    """x [T, K] as it is quantised to 8 bits: float64 [T, columns in whole parts]."""
    part = part_columns(group)
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % part))
    parts = padded.view(len(x), padded.shape[1] // part, part)
    largest = parts.abs().amax(dim=-1, keepdim=True)
    kept = largest > 1e-30
    # A tensor, since 127 / largest would be 127 * (1 / largest), which is rounded twice.
    inverse = torch.where(kept, torch.tensor(127.0) / largest, 0)
    numbers = (parts * inverse).round().clamp(-127, 127)
    scale = torch.where(largest.isfinite(), torch.where(kept, largest / 127, 0), torch.nan)
    return (numbers.double() * scale.double()).flatten(1)

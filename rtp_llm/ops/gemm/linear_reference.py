# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.gemm.int8_layout import GROUP_SIZE, unpack


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Plain PyTorch reference of `ops.linear`: same arguments and results."""
    result = torch.einsum("t...k,...ok->t...o", x.float(), weight.float())
    if bias is not None:
        result = result + bias.float()
    return result.to(x.dtype)


def int8_linear_reference(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Plain PyTorch reference of `ops.int8_linear`: same arguments and results."""
    numbers, weight_scale = unpack(weight, scale)
    wide = numbers.double() * weight_scale.double().repeat_interleave(GROUP_SIZE, dim=1)
    result = x.double() @ wide[:, : x.shape[1]].T
    if bias is not None:
        result = result + bias.double()
    return result.to(x.dtype)


def w8a8_int8_linear_reference(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Plain PyTorch reference of `ops.w8a8_int8_linear`: same arguments and results."""
    numbers, weight_scale = unpack(weight, scale)
    columns, groups = numbers.shape[1], weight_scale.shape[1]
    padded = torch.nn.functional.pad(x.float(), (0, columns - x.shape[1]))
    grouped = padded.view(x.shape[0], groups, GROUP_SIZE)
    largest = grouped.abs().amax(dim=-1)
    kept = largest > 1e-30
    # A tensor, since 127 / largest would be 127 * (1 / largest), which is rounded twice.
    inverse = torch.where(kept, torch.tensor(127.0) / largest, 0)
    x_numbers = (grouped * inverse[..., None]).round().clamp(-127, 127)
    # In float64 the sums over a group are exact.
    dots = torch.einsum(
        "tgc,ogc->tog",
        x_numbers.double(),
        numbers.view(numbers.shape[0], groups, GROUP_SIZE).double(),
    )
    x_scale = torch.where(largest.isfinite(), torch.where(kept, largest / 127, 0), torch.nan)
    result = torch.einsum("tog,tg,og->to", dots, x_scale.double(), weight_scale.double())
    if bias is not None:
        result = result + bias.double()
    return result.to(x.dtype)

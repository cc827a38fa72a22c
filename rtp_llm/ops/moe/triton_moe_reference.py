# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the experts in Triton."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.fp8.fp8_blocks import E4M3
from rtp_llm.ops.moe.moe_reference import grouped_linear_reference


def triton_gate_up_reference(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.triton_gate_up`: same arguments and results."""
    entries = _scaled(x, x_scales)[rows.long() // top_k]
    weight = _with(_scaled(weight, weight_scales), shared)
    gate, up = grouped_linear_reference(entries, weight, offsets).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(_result_dtype(x))


def triton_down_reference(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.triton_down`: same arguments and results."""
    weight = _with(_scaled(weight, weight_scales), shared)
    return grouped_linear_reference(_scaled(x, x_scales), weight, offsets).to(_result_dtype(x))


def _scaled(x: Tensor, scales: Tensor | None) -> Tensor:
    return x.float() if scales is None else x.float() * scales


def _result_dtype(x: Tensor) -> torch.dtype:
    return torch.bfloat16 if x.dtype == E4M3 else x.dtype


def _with(weight: Tensor, shared: Tensor | None) -> Tensor:
    return weight if shared is None else torch.cat([weight, shared.float()[None]])

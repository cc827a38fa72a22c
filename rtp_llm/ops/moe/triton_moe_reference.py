# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the experts in Triton."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.moe.moe_reference import grouped_linear_reference


def triton_gate_up_reference(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_gate_up."""
    entries = x.float()[rows.long() // top_k]
    both = grouped_linear_reference(entries, _with(weight, shared), offsets)
    gate, up = both.chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def triton_down_reference(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_down."""
    return grouped_linear_reference(x.float(), _with(weight, shared), offsets).to(x.dtype)


def _with(weight: Tensor, shared: Tensor | None) -> Tensor:
    weight = weight.float()
    return weight if shared is None else torch.cat([weight, shared.float()[None]])

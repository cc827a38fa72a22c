# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the linear layers with what surrounds them."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.norm.norm_reference import rms_norm_reference


def fused_linear_rows_reference(weight: Tensor) -> int:
    """Always 0: the fused operators' references are never faster than separate operators."""
    return 0


def skinny_linear_rows_reference(weight: Tensor) -> int:
    """Always 0: the reference of skinny_linear is never faster than a plain product."""
    return 0


def skinny_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Plain PyTorch reference of `ops.skinny_linear`: same arguments and results."""
    return _product(x, weight, bias).to(x.dtype)


def gated_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> Tensor:
    """Plain PyTorch reference of `ops.gated_linear`: same arguments and results."""
    return gated(_product(x, weight, bias), activation).to(x.dtype)


def linear_add_reference(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Plain PyTorch reference of `ops.linear_add`: same arguments and results."""
    residual.copy_((residual.float() + _product(x, weight, bias)).to(residual.dtype))


def norm_linear_reference(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    norm_offset: float = 0.0,
) -> Tensor:
    """Plain PyTorch reference of `ops.norm_linear`: same arguments and results."""
    return _product(rms_norm_reference(x, norm_weight, eps, norm_offset), weight, bias).to(x.dtype)


def norm_gated_linear_reference(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    norm_offset: float = 0.0,
) -> Tensor:
    """Plain PyTorch reference of `ops.norm_gated_linear`: same arguments and results."""
    normed = rms_norm_reference(x, norm_weight, eps, norm_offset)
    return gated(_product(normed, weight, bias), activation).to(x.dtype)


def linear_float_reference(x: Tensor, weight: Tensor) -> Tensor:
    """Plain PyTorch reference of `ops.linear_float`: same arguments and results."""
    return _product(x, weight, None)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x.float() @ weight.float().T
    return product if bias is None else product + bias.float()


def gated(pairs: Tensor, activation: str) -> Tensor:
    """The activated first half of each row times the second."""
    gate, up = pairs.chunk(2, dim=-1)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    form = "tanh" if activation == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(gate, approximate=form) * up

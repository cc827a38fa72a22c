"""Plain PyTorch references of the linear layers with what surrounds them."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.norm.norm_reference import rms_norm_reference


def fused_linear_rows_reference(weight: Tensor) -> int:
    """No reference is quicker."""
    return 0


def linear_add_reference(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """See rtp_llm.ops.linear_add."""
    residual.copy_((residual.float() + _product(x, weight, bias)).to(residual.dtype))


def norm_linear_reference(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    norm_offset: float = 0.0,
) -> Tensor:
    """See rtp_llm.ops.norm_linear."""
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
    """See rtp_llm.ops.norm_gated_linear."""
    both = _product(rms_norm_reference(x, norm_weight, eps, norm_offset), weight, bias)
    gate, up = both.chunk(2, dim=-1)
    return (_activated(gate, activation) * up).to(x.dtype)


def linear_float_reference(x: Tensor, weight: Tensor) -> Tensor:
    """See rtp_llm.ops.linear_float."""
    return _product(x, weight, None)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x.float() @ weight.float().T
    return product if bias is None else product + bias.float()


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")

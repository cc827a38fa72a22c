# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the norms."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, norm_offset: float = 0.0) -> Tensor:
    """Plain PyTorch reference of `ops.rms_norm`: same arguments and results."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse * (weight.float() + norm_offset)).to(x.dtype)


def fused_add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float = 0.0
) -> None:
    """Plain PyTorch reference of `ops.fused_add_rms_norm`: same arguments and results."""
    residual.copy_((residual.float() + x.float()).to(residual.dtype))
    x.copy_(rms_norm_reference(residual, weight, eps, norm_offset))


def qk_rms_norm_reference(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    norm_offset: float = 0.0,
) -> None:
    """Plain PyTorch reference of `ops.qk_rms_norm`: same arguments and results."""
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, q_weight.shape[0])
    query = heads[:, :num_heads]
    key = heads[:, num_heads : num_heads + num_kv_heads]
    query.copy_(rms_norm_reference(query, q_weight, eps, norm_offset))
    key.copy_(rms_norm_reference(key, k_weight, eps, norm_offset))


def gated_rms_norm_reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain PyTorch reference of `ops.gated_rms_norm`: same arguments and results."""
    normed = rms_norm_reference(x.float(), weight.float(), eps)
    return (normed * torch.nn.functional.silu(gate.float())).to(x.dtype)


def layer_norm_reference(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Plain PyTorch reference of `ops.layer_norm`: same arguments and results."""
    wide = x.float()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    inverse = torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + eps)
    scaled = centered * inverse * weight.float()
    return (scaled if bias is None else scaled + bias.float()).to(x.dtype)


def fused_add_layer_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> None:
    """Plain PyTorch reference of `ops.fused_add_layer_norm`: same arguments and results."""
    residual.copy_((residual.float() + x.float()).to(residual.dtype))
    x.copy_(layer_norm_reference(residual, weight, bias, eps))

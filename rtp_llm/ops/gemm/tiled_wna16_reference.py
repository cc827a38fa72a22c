# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of linear layers with integer weights packed in tiles."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.gemm.skinny_linear_reference import gated
from rtp_llm.ops.gemm.tiled_wna16_layout import TiledWna16, unpack
from rtp_llm.ops.norm.norm_reference import rms_norm_reference


def tiled_wna16_linear_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None = None,
    activation: str = "none",
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
) -> Tensor:
    """Plain PyTorch reference of `ops.tiled_wna16_linear`: same arguments and results."""
    normed = x if norm_weight is None else rms_norm_reference(x, norm_weight, eps, norm_offset)
    product = _product(normed, TiledWna16(weight, scale, zero), bits, bias)
    return (product if activation == "none" else gated(product, activation)).to(x.dtype)


def tiled_wna16_add_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None,
    residual: Tensor,
) -> None:
    """Plain PyTorch reference of `ops.tiled_wna16_add`: same arguments and results."""
    product = _product(x, TiledWna16(weight, scale, zero), bits, bias)
    residual.copy_((residual.float() + product).to(residual.dtype))


def tiled_wna16_float_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.tiled_wna16_float`: same arguments and results."""
    return _product(x, TiledWna16(weight, scale, zero), bits, bias)


def tiled_wna16_embedding_reference(
    ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    out: Tensor,
) -> None:
    """Plain PyTorch reference of `ops.tiled_wna16_embedding`: same arguments and results."""
    out.copy_(unpack(TiledWna16(weight, scale, zero), bits)[ids.long()])


def _product(x: Tensor, weight: TiledWna16, bits: int, bias: Tensor | None) -> Tensor:
    product = x.float() @ unpack(weight, bits).T
    return product if bias is None else product + bias.float()

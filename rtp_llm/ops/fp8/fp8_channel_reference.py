# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of FP8 products with a scale for each token and output channel."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import E4M3

_LARGEST = 448.0
_LEAST_AMAX = 1e-10


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(f"fp8 channels: {message}")


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., M, K] of any float dtype -> (q e4m3 [..., M, K], scales float32 [..., M, 1])."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(_LEAST_AMAX)
    # On GPUs a division by a plain number is a multiplication, which rounds otherwise.
    scales = largest / largest.new_full((), _LARGEST)
    return (wide / scales).clamp(-_LARGEST, _LARGEST).to(E4M3), scales


def check_operands(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> None:
    """Raise RuntimeError unless the operands of fp8_channel_linear fit together."""
    _require(q.dim() == 2 and weight.dim() == 2, "q and weight are matrices")
    _require(q.dtype == E4M3 == weight.dtype, f"q is {q.dtype}, weight {weight.dtype}: not e4m3")
    _require(q.shape[1] == weight.shape[1], f"q {tuple(q.shape)}, weight {tuple(weight.shape)}")
    for what, found, rows in (("scales", scales, q), ("weight_scales", weight_scales, weight)):
        _require(
            found.dtype == torch.float32 and found.shape == (len(rows), 1),
            f"{what} are {found.dtype} {tuple(found.shape)}, of {len(rows)} rows",
        )


def fp8_quantize_tokens_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Plain PyTorch reference of `ops.fp8_quantize_tokens`: same arguments and results."""
    _require(x.dim() == 2 and x.is_floating_point(), f"x is {x.dtype} {tuple(x.shape)}")
    return quantize_tokens(x)


def fp8_channel_linear_reference(
    q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_channel_linear`: same arguments and results."""
    check_operands(q, scales, weight, weight_scales)
    product = (q.float() @ weight.float().T) * scales * weight_scales.T
    return product.to(torch.bfloat16)

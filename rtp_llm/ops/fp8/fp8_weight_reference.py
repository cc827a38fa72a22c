# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of products of floats with FP8 weights."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import dequantize_weight, num_blocks


def fp8_weight_linear_reference(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_weight_linear`: same arguments and results."""
    in_blocks = scales.shape == (num_blocks(weight.shape[0]), num_blocks(weight.shape[1]))
    floats = dequantize_weight(weight, scales) if in_blocks else weight.float() * scales
    result = x.double() @ floats.double().T
    return (result if bias is None else result + bias.double()).to(x.dtype)

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of packed linear layers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.gemm.packed_layout import unpack_columns


def packed_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, activation: str = "none"
) -> Tensor:
    """See rtp_llm.ops.packed_linear."""
    y = functional.linear(x, unpack_columns(weight, outputs), bias)
    if activation == "none":
        return y
    return functional.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")

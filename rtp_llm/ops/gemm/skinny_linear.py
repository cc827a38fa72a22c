# SPDX-License-Identifier: Apache-2.0
"""Linear layers of few rows, fused with the norm before or the activation or sum after them.

A device may lack these operators (ops.has_kernel). Except for linear_float they take only weights
and numbers of rows that fused_linear_rows or skinny_linear_rows allow; other calls raise
RuntimeError.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(optional=True)
def fused_linear_rows(weight: Tensor) -> int:
    """The most rows of x for which fused operators are faster with this weight; 0: unsupported.

    weight [O, K]; faster than a product and separate operators before and after it.
    """
    return 0


@operator(optional=True)
def skinny_linear_rows(weight: Tensor) -> int:
    """fused_linear_rows for skinny_linear and gated_linear, which may take more rows."""
    return 0


@operator(optional=True)
def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, summed in float32 and rounded once.

    x [T, K] (the row stride is free), weight [O, K], bias [O]; one dtype, bfloat16 or float16.
    Returns [T, O], contiguous. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]))


@operator(optional=True)
def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(first half) * second half of each row of x @ weight.T + bias, rounded once.

    As skinny_linear; `activation` is "silu", "gelu" or "gelu_tanh". Returns [T, O / 2], contiguous.
    """
    return x.new_empty((x.shape[0], weight.shape[0] // 2))


@operator(optional=True)
def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: MutableTensor) -> None:
    """In place: residual += x @ weight.T + bias, summed in float32 and rounded once.

    x [T, K], residual [T, O] (the row strides are free), weight [O, K], bias [O]; one dtype,
    bfloat16 or float16. x and residual must not overlap. RuntimeError on a mismatch.
    """


@operator(optional=True)
def norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    norm_offset: float = 0.0,
) -> Tensor:
    """rms_norm(x, norm_weight, eps, norm_offset), rounded to x's dtype, @ weight.T + bias.

    x [T, K] (the row stride is free), norm_weight [K], weight [O, K], bias [O]; one dtype, bfloat16
    or float16. norm_offset is 0 or 1. Returns [T, O], contiguous. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]))


@operator(optional=True)
def norm_gated_linear(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    norm_offset: float = 0.0,
) -> Tensor:
    """activation(first half) * second half of each row of norm_linear, without rounding in between.

    `activation` is "silu", "gelu" or "gelu_tanh"; otherwise as norm_linear. Returns [T, O / 2],
    contiguous.
    """
    return x.new_empty((x.shape[0], weight.shape[0] // 2))


@operator(optional=True)
def linear_float(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T as its float32 sums, not rounded: [T, O], contiguous.

    x [T, K] (the row stride is free) and weight [O, K] of one dtype, bfloat16 or float16; any
    number of rows. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32)

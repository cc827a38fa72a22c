# SPDX-License-Identifier: Apache-2.0
"""Linear layers: float weights as checkpoints hold them, and int8 weights packed at load time."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; sums are float32 and rounded once.

    x [T, K] of any float dtype (the row stride is free); weight [O, K] and bias [O] of the same
    dtype. Returns [T, O], contiguous. On the CPU a row of x gives the same bits in every batch, and
    x [T, H, K] with weight [H, O, K] and no bias are H products, [T, H, O]. RuntimeError on a
    mismatch.
    """
    return x.new_empty((*x.shape[:-1], weight.shape[-2]))


@operator
def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ dequantised(weight).T + bias; x is not rounded, sums are float32 and rounded once.

    x [T, K] of any float dtype (the row stride is free); weight int8 and scale float32 as made by
    rtp_llm.quantization.int8.pack; bias [O] of x's dtype. Returns [T, O] in x's dtype, contiguous.
    On the CPU a row of x gives the same bits in every batch. GPUs multiply more than 32 rows by the
    weight dequantised to x's dtype. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]))


@operator
def w8a8_int8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """int8_linear with x quantised to int8 on the fly.

    Each 64 columns of a row of x get a scale of their own; the largest magnitude becomes 127. This
    adds about as much error as rounding the weight does, and more where single columns are
    outliers. A row with a NaN or an infinity gives NaN. On the CPU a row of x gives the same bits
    in every batch. GPUs multiply more than 32 rows as int8_linear does. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]))

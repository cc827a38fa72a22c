# SPDX-License-Identifier: Apache-2.0
"""Activations as block-scaled FP8, the input of the GEMMs in rtp_llm.ops.fp8.fp8_gemm."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8.fp8_blocks import E4M3, num_blocks, scale_rows


def empty_quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised results of fp8_quantize(x): q e4m3 like x, and float32 scales."""
    *outer, rows, columns = x.shape
    scales = x.new_empty((*outer, num_blocks(columns), scale_rows(rows)), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=E4M3), scales


@operator(composite=True)
def fp8_quantize(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise x with one scale for each 128 channels of a row; the largest magnitude becomes 448.

    x [..., M, K] of float32, bfloat16 or float16, contiguous; a last group of fewer channels is
    treated as if padded with zeros. With masked_m int32 [G], x is [G, M, K] and only the first
    masked_m[g] rows of group g are read; the results of other rows are undefined. Returns (q e4m3
    [..., M, K], scales float32 [..., ceil(K / 128), M rounded up to 4]): x = q * scale. Scales past
    row M are zeros. RuntimeError on a mismatch.
    """
    return empty_quantized(x)


@operator(composite=True)
def silu_and_mul_fp8(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """fp8_quantize(silu(x[..., :I]) * x[..., I:]), without rounding in between.

    x [..., M, 2 I]; otherwise as fp8_quantize. RuntimeError on a mismatch.
    """
    return empty_quantized(x[..., : x.shape[-1] // 2])

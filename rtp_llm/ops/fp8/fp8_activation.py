# SPDX-License-Identifier: Apache-2.0
"""Activations as block-scaled FP8: what GEMMs of rtp_llm.ops.fp8.fp8_gemm multiply."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8.fp8_blocks import E4M3, num_blocks, scale_rows


def empty_quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Results of fp8_quantize(x), without data."""
    *outer, rows, columns = x.shape
    scales = x.new_empty((*outer, num_blocks(columns), scale_rows(rows)), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=E4M3), scales


@operator(composite=True)
def fp8_quantize(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each 128 channels of a row get a scale, the largest magnitude being 448.

    x [..., M, K] of float32, bfloat16 or float16, contiguous; a last group of fewer channels counts
    as if zeros followed. With masked_m int32 [G], x is [G, M, K] and of group g only the first
    masked_m[g] rows are read; the others become anything. Returns (q e4m3 [..., M, K], scales
    float32 [..., ceil(K / 128), M rounded up to 4]): x = q * scale. Scales behind row M are zeros.
    RuntimeError on a mismatch.
    """
    return empty_quantized(x)


@operator(composite=True)
def silu_and_mul_fp8(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """fp8_quantize(silu(x[..., :I]) * x[..., I:]), which is not rounded in between.

    x [..., M, 2 I]; else as fp8_quantize.
    """
    return empty_quantized(x[..., : x.shape[-1] // 2])

# SPDX-License-Identifier: Apache-2.0
"""NVFP4: blocks of 16 e2m1 numbers with a scale each."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import E4M3
from rtp_llm.ops.gemm.tiled_wna16_layout import Integers
from rtp_llm.ops.moe.mxfp4_blocks import numbers_of

BLOCK = 16


def dequantize_rows(packed: Tensor, scales: Tensor) -> Tensor:
    """The float32 [rows, K] of packed uint8 [rows, K / 2], the even number of a pair first.

    scales float32 [rows, K / 16].
    """
    rows, pairs = packed.shape
    numbers = numbers_of(packed).view(rows, 2 * pairs // BLOCK, BLOCK)
    return numbers.mul_(scales.unsqueeze(-1)).view(rows, 2 * pairs)


def integers_of(packed: Tensor, scales: Tensor, row_scales: Tensor) -> Integers:
    """Twice the numbers of packed uint8 [rows, K / 2] as codes of 6 bits.

    scales [rows, K / 16]: bytes of e4m3, which row_scales float32 [rows] multiply.
    """
    codes = (2 * numbers_of(packed) + 32).to(torch.uint8)
    return Integers(codes, scales.view(E4M3).float() * (row_scales[:, None] / 2))

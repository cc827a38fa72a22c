# SPDX-License-Identifier: Apache-2.0
"""NVFP4: blocks of 16 e2m1 numbers with a scale each."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.moe.mxfp4_blocks import numbers_of

BLOCK = 16


def dequantize_rows(packed: Tensor, scales: Tensor) -> Tensor:
    """The float32 [rows, K] of packed uint8 [rows, K / 2], the even number of a pair first.

    scales float32 [rows, K / 16].
    """
    rows, pairs = packed.shape
    numbers = numbers_of(packed).view(rows, 2 * pairs // BLOCK, BLOCK)
    return numbers.mul_(scales.unsqueeze(-1)).view(rows, 2 * pairs)

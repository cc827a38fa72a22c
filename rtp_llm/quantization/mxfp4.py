# SPDX-License-Identifier: Apache-2.0
"""MXFP4: blocks of 32 e2m1 numbers with a power of two as their scale (OCP Microscaling 1.0)."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
# Of the codes 0 to 15; bit 3 is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BIAS = 127  # of the exponents in scales


def dequantize_rows(blocks: Tensor, scales: Tensor, start: int = 0) -> Tensor:
    """The float32 [rows, K] that rows of `blocks`, from row `start` of the weight on, stand for.

    blocks uint8 [rows, K / 2]: the even number of a pair is in the low four bits; scales uint8
    [all rows, K / 32]: biased exponents, e8m0.
    """
    rows, pairs = blocks.shape
    table = torch.tensor(E2M1, device=blocks.device)
    codes = torch.stack((blocks & 0xF, blocks >> 4), dim=-1).to(torch.int32)
    numbers = table[codes].view(rows, 2 * pairs // BLOCK, BLOCK)
    exponents = scales[start : start + rows].to(torch.int32) - _BIAS
    return torch.ldexp(numbers, exponents.unsqueeze(-1)).view(rows, 2 * pairs)


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise floats [rows, K] to (blocks, scales), each number to the nearest.

    The scale is the power of two of a block's largest magnitude, less that of e2m1's, 4; numbers
    beyond the largest, 6 times the scale, become it. K is a multiple of 32.
    """
    rows, columns = weight.shape
    numbers = weight.float().view(rows, columns // BLOCK, BLOCK)
    exponents = torch.frexp(numbers.abs().amax(-1)).exponent - 1 - 2
    scales = (exponents + _BIAS).clamp(0, 254)
    scaled = torch.ldexp(numbers, (_BIAS - scales).unsqueeze(-1))
    magnitudes = torch.tensor(E2M1[:8], device=weight.device)
    # A number half way between two goes to the one with an even code.
    codes = torch.zeros_like(scaled, dtype=torch.uint8)
    for code in range(1, 8):
        middle = (magnitudes[code - 1] + magnitudes[code]) / 2
        above = scaled.abs() >= middle if code % 2 == 0 else scaled.abs() > middle
        codes += above.to(torch.uint8)
    codes |= scaled.signbit().to(torch.uint8) << 3
    pairs = codes.view(rows, columns // 2, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scales.to(torch.uint8)

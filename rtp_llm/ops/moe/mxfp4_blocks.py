# SPDX-License-Identifier: Apache-2.0
"""MXFP4: blocks of 32 e2m1 numbers with a power of two as their scale (OCP Microscaling 1.0)."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
# Of the codes 0 to 15; bit 3 is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127  # of the exponents in scales


def numbers_of(packed: Tensor) -> Tensor:
    """The float32 numbers [..., 2 n] of pairs of codes uint8 [..., n], the low four bits first."""
    table = torch.tensor(E2M1, device=packed.device)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).to(torch.int32)
    return table[codes].flatten(-2)


def dequantize_rows(blocks: Tensor, scales: Tensor, start: int = 0) -> Tensor:
    """The float32 [rows, K] that rows of `blocks`, from row `start` of the weight on, stand for.

    blocks uint8 [rows, K / 2]: the even number of a pair is in the low four bits; scales uint8
    [all rows, K / 32]: biased exponents, e8m0.
    """
    rows, pairs = blocks.shape
    numbers = numbers_of(blocks).view(rows, 2 * pairs // BLOCK, BLOCK)
    exponents = scales[start : start + rows].to(torch.int32) - BIAS
    return torch.ldexp(numbers, exponents.unsqueeze(-1)).view(rows, 2 * pairs)


def integers_of(blocks: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [rows, K] of 5 bits, of which 16 is zero, and scales float32 [rows, K / 32].

    Twice the numbers of blocks uint8 [rows, K / 2] are whole; scales uint8 as in dequantize_rows.
    """
    codes = (2 * numbers_of(blocks) + 16).to(torch.uint8)
    ones = torch.ones(scales.shape, device=scales.device)
    return codes, torch.ldexp(ones, scales.to(torch.int32) - BIAS - 1)

# SPDX-License-Identifier: Apache-2.0
"""Quantises floats to MXFP4; see rtp_llm/ops/moe/mxfp4_blocks.py for the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.mxfp4_blocks import BIAS, BLOCK, E2M1


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise floats [rows, K] to (blocks, scales), each number to the nearest.

    The scale is the power of two of a block's largest magnitude, less that of e2m1's, 4; numbers
    beyond the largest, 6 times the scale, become it. K is a multiple of 32.
    """
    rows, columns = weight.shape
    numbers = weight.float().view(rows, columns // BLOCK, BLOCK)
    exponents = torch.frexp(numbers.abs().amax(-1)).exponent - 1 - 2
    scales = (exponents + BIAS).clamp(0, 254)
    codes, _ = nearest_codes(torch.ldexp(numbers, (BIAS - scales).unsqueeze(-1)))
    pairs = codes.view(rows, columns // 2, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scales.to(torch.uint8)


def nearest_codes(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The codes uint8 of the e2m1 numbers nearest to `scaled`, and those numbers in its dtype."""
    table = torch.tensor(E2M1, dtype=scaled.dtype, device=scaled.device)
    # A number half way between two goes to the one with an even code.
    codes = torch.zeros_like(scaled, dtype=torch.uint8)
    for code in range(1, 8):
        middle = (table[code - 1] + table[code]) / 2
        above = scaled.abs() >= middle if code % 2 == 0 else scaled.abs() > middle
        codes += above.to(torch.uint8)
    codes |= scaled.signbit().to(torch.uint8) << 3
    return codes, table[codes.long()]

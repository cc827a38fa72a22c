# SPDX-License-Identifier: Apache-2.0
"""Numbers of a few bits in the bytes of GGUF blocks."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 0xF
# The numbers that the codes of IQ4_NL and IQ4_XS stand for.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def f16(blocks: Tensor) -> Tensor:
    """float32 of bytes of float16."""
    return blocks.contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """The low four bits of all bytes, then the high ones: uint8 [..., 2 * bytes]."""
    return torch.cat((packed & LOW, packed >> 4), -1)


def chunks(packed: Tensor) -> Tensor:
    """Numbers of four bits, uint8 [..., 8, 32]: 32 bytes hold a chunk in low nibbles, then one."""
    pairs = nibbles(torch.unflatten(packed, -1, (4, 32)))
    return torch.unflatten(pairs, -1, (2, 32)).flatten(-3, -2)


def fifth_bit(packed: Tensor, high: Tensor) -> Tensor:
    """Numbers of five bits, uint8 [..., 32]: bit i of `high` is the fifth of number i."""
    bits = high.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=high.device) & 1
    return nibbles(packed) | bits.flatten(-2) << 4


def pairs_of_bits(packed: Tensor) -> Tensor:
    """Numbers of two bits, uint8 [..., 2, 4, 32]: 32 bytes hold four chunks, lowest bits first."""
    return torch.unflatten(packed, -1, (2, 1, 32)) >> shifts(packed, 2, 4) & 3


def shifts(blocks: Tensor, step: int, count: int) -> Tensor:
    """0, step, 2 * step and so on: uint8 [count, 1]."""
    numbers = torch.arange(0, step * count, step, dtype=torch.uint8, device=blocks.device)
    return numbers.unsqueeze(-1)


def scales_and_mins(scale: Tensor, minimum: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """scale * s and minimum * m, float32 [..., 8], for a 6-bit s and m of each 32 numbers.

    `packed` uint8 [..., 12]: four bytes of s, four of m, four of low nibbles of the other s (low)
    and m (high), whose top bits are the top bits of the first eight bytes.
    """
    first, second, third = torch.unflatten(packed, -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, third & LOW | first >> 6 << 4), -1)
    mins = torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
    return f16(scale) * scales.float(), f16(minimum) * mins.float()


def q3_k_codes(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [..., 256], of which 4 is zero, and float32 scales [..., 16] of Q3_K."""
    high, packed, packed_scales, scale = torch.split_with_sizes(blocks, (32, 64, 12, 2), -1)
    low_scales, high_scales = torch.split_with_sizes(packed_scales, (8, 4), -1)
    top = (high_scales.unsqueeze(-2) >> shifts(blocks, 2, 4) & 3).flatten(-2)
    factors = f16(scale) * ((nibbles(low_scales) | top << 4).float() - 32)
    # As in Q5_K, but a bit that is not set takes 4 away.
    bits = high.unsqueeze(-2) >> shifts(blocks, 1, 8) & 1
    return (pairs_of_bits(packed).flatten(-3, -2) | bits << 2).flatten(-2), factors


def iq4_xs_codes(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [..., 8, 32] of IQ4, and float32 scales [..., 8] of IQ4_XS."""
    scale, high, low, packed = torch.split_with_sizes(blocks, (2, 2, 4, 128), -1)
    low_scales = torch.stack((low & LOW, low >> 4), -1).flatten(-2)
    top = (high.unsqueeze(-1) >> shifts(blocks, 2, 4).flatten() & 3).flatten(-2)
    factors = f16(scale) * ((low_scales | top << 4).float() - 32)
    return nibbles(torch.unflatten(packed, -1, (8, 16))), factors

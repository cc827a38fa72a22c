# SPDX-License-Identifier: Apache-2.0
"""Numbers of a few bits in the bytes of GGUF blocks."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 0xF


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


def scales_and_leasts(scale: Tensor, least: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """scale * s and least * m, float32 [..., 8], for a 6-bit s and m of each 32 numbers.

    `packed` uint8 [..., 12]: four bytes of s, four of m, four of low nibbles of the other s (low)
    and m (high), whose top bits are the top bits of the first eight bytes.
    """
    first, second, third = torch.unflatten(packed, -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, third & LOW | first >> 6 << 4), -1)
    leasts = torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
    return f16(scale) * scales.float(), f16(least) * leasts.float()

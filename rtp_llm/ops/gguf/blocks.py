# SPDX-License-Identifier: Apache-2.0
"""The weights that blocks of GGUF tensors stand for, bit by bit as ggml computes them.

Each function takes blocks uint8 [..., bytes of a block] and returns float32 [..., weights of a
block]. Products and sums are separate operations on purpose: a fused one would round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rtp_llm.ops.moe.mxfp4_blocks import BIAS, E2M1

_LOW = 0xF
# The numbers that the codes of IQ4_NL and IQ4_XS stand for.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """The float32 [..., weights] of blocks of the type `kind`, uint8 [..., bytes].

    Raises KeyError for a type that is not in DEQUANTIZERS and RuntimeError for blocks of another
    size than the type's.
    """
    return DEQUANTIZERS[kind](blocks)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return _f16(scale) * (_nibbles(packed).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    scale, least, packed = torch.split_with_sizes(blocks, (2, 2, 16), -1)
    return _f16(scale) * _nibbles(packed).float() + _f16(least)


def _q5_0(blocks: Tensor) -> Tensor:
    scale, high, packed = torch.split_with_sizes(blocks, (2, 4, 16), -1)
    return _f16(scale) * (_fifth_bit(packed, high).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    scale, least, high, packed = torch.split_with_sizes(blocks, (2, 2, 4, 16), -1)
    return _f16(scale) * _fifth_bit(packed, high).float() + _f16(least)


def _q8_0(blocks: Tensor) -> Tensor:
    scale, numbers = torch.split_with_sizes(blocks, (2, 32), -1)
    return _f16(scale) * numbers.view(torch.int8).float()


def _q4_k(blocks: Tensor) -> Tensor:
    scale, least, packed_scales, packed = torch.split_with_sizes(blocks, (2, 2, 12, 128), -1)
    numbers = _chunks(packed)
    return _scaled_with_least(scale, least, packed_scales, numbers)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, least, packed_scales, high, packed = torch.split_with_sizes(
        blocks, (2, 2, 12, 32, 128), -1
    )
    low = _chunks(packed)
    # Bit j of byte i belongs to number i of chunk j.
    bits = high.unsqueeze(-2) >> _shifts(blocks, 1, 8) & 1
    return _scaled_with_least(scale, least, packed_scales, low | bits << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    packed, high, scales, scale = torch.split_with_sizes(blocks, (128, 64, 16, 2), -1)
    low = _nibbles(torch.unflatten(packed, -1, (2, 64)))
    numbers = (low | _pairs_of_bits(high).flatten(-2) << 4).flatten(-2).float() - 32
    factors = _f16(scale) * scales.view(torch.int8).float()
    return (factors.unsqueeze(-1) * torch.unflatten(numbers, -1, (16, 16))).flatten(-2)


def _q2_k(blocks: Tensor) -> Tensor:
    packed_scales, packed, scale, least = torch.split_with_sizes(blocks, (16, 64, 2, 2), -1)
    factors = (_f16(scale) * (packed_scales & _LOW).float()).unsqueeze(-1)
    offsets = (_f16(least) * (packed_scales >> 4).float()).unsqueeze(-1)
    numbers = torch.unflatten(_pairs_of_bits(packed).flatten(-3), -1, (16, 16))
    return (factors * numbers.float() - offsets).flatten(-2)


def _q3_k(blocks: Tensor) -> Tensor:
    high, packed, packed_scales, scale = torch.split_with_sizes(blocks, (32, 64, 12, 2), -1)
    low_scales, high_scales = torch.split_with_sizes(packed_scales, (8, 4), -1)
    top = (high_scales.unsqueeze(-2) >> _shifts(blocks, 2, 4) & 3).flatten(-2)
    factors = _f16(scale) * ((_nibbles(low_scales) | top << 4).float() - 32)
    # As in Q5_K, but a bit that is not set takes 4 away.
    bits = high.unsqueeze(-2) >> _shifts(blocks, 1, 8) & 1
    numbers = (_pairs_of_bits(packed).flatten(-3, -2) | bits << 2).flatten(-2).float() - 4
    return (factors.unsqueeze(-1) * torch.unflatten(numbers, -1, (16, 16))).flatten(-2)


def _iq4_nl(blocks: Tensor) -> Tensor:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return _f16(scale) * _looked_up(_IQ4, _nibbles(packed))


def _iq4_xs(blocks: Tensor) -> Tensor:
    scale, high, low, packed = torch.split_with_sizes(blocks, (2, 2, 4, 128), -1)
    low_scales = torch.stack((low & _LOW, low >> 4), -1).flatten(-2)
    top = (high.unsqueeze(-1) >> _shifts(blocks, 2, 4).flatten() & 3).flatten(-2)
    factors = _f16(scale) * ((low_scales | top << 4).float() - 32)
    numbers = _looked_up(_IQ4, _nibbles(torch.unflatten(packed, -1, (8, 16))))
    return (factors.unsqueeze(-1) * numbers).flatten(-2)


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent, packed = torch.split_with_sizes(blocks, (1, 16), -1)
    # Twice the numbers with half the scale, so that the largest scale is finite; no -0.0.
    numbers = _looked_up(tuple(2 * number + 0.0 for number in E2M1), _nibbles(packed))
    return torch.ldexp(numbers, exponent.to(torch.int32) - BIAS - 1)


DEQUANTIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def _nibbles(packed: Tensor) -> Tensor:
    """The low four bits of all bytes, then the high ones: uint8 [..., 2 * bytes]."""
    return torch.cat((packed & _LOW, packed >> 4), -1)


def _chunks(packed: Tensor) -> Tensor:
    """Numbers of four bits, uint8 [..., 8, 32]: 32 bytes hold a chunk in low nibbles, then one."""
    pairs = _nibbles(torch.unflatten(packed, -1, (4, 32)))
    return torch.unflatten(pairs, -1, (2, 32)).flatten(-3, -2)


def _fifth_bit(packed: Tensor, high: Tensor) -> Tensor:
    """Numbers of five bits, uint8 [..., 32]: bit i of `high` is the fifth of number i."""
    bits = high.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=high.device) & 1
    return _nibbles(packed) | bits.flatten(-2) << 4


def _pairs_of_bits(packed: Tensor) -> Tensor:
    """Numbers of two bits, uint8 [..., 2, 4, 32]: 32 bytes hold four chunks, lowest bits first."""
    shifts = _shifts(packed, 2, 4)
    return torch.unflatten(packed, -1, (2, 1, 32)) >> shifts & 3


def _looked_up(table: Sequence[float], codes: Tensor) -> Tensor:
    """The float32 numbers of codes 0 to 15."""
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.to(torch.int32)]


def _shifts(blocks: Tensor, step: int, count: int) -> Tensor:
    """0, step, 2 * step and so on: uint8 [count, 1]."""
    shifts = torch.arange(0, step * count, step, dtype=torch.uint8, device=blocks.device)
    return shifts.unsqueeze(-1)


def _scaled_with_least(scale: Tensor, least: Tensor, packed: Tensor, numbers: Tensor) -> Tensor:
    """scale * s * q - least * m for numbers [..., 8, 32] with a 6-bit s and m for each 32.

    `packed` uint8 [..., 12]: four bytes of s, four of m, four of low nibbles of the other s (low)
    and m (high), whose top bits are the top bits of the first eight bytes.
    """
    first, second, third = torch.unflatten(packed, -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, third & _LOW | first >> 6 << 4), -1)
    leasts = torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
    factors = (_f16(scale) * scales.float()).unsqueeze(-1)
    offsets = (_f16(least) * leasts.float()).unsqueeze(-1)
    return (factors * numbers.float() - offsets).flatten(-2)

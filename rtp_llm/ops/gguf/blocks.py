# SPDX-License-Identifier: Apache-2.0
"""The weights that blocks of GGUF tensors stand for, bit by bit as ggml computes them.

Each function takes blocks uint8 [..., bytes of a block] and returns float32 [..., weights of a
block]. Products and sums are separate operations on purpose: a fused one would round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rtp_llm.ops.gguf.fields import (
    IQ4,
    LOW,
    chunks,
    f16,
    fifth_bit,
    iq4_xs_codes,
    nibbles,
    pairs_of_bits,
    q3_k_codes,
    scales_and_mins,
    shifts,
)
from rtp_llm.ops.moe.mxfp4_blocks import BIAS, E2M1


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """The float32 [..., weights] of blocks of the type `kind`, uint8 [..., bytes].

    Raises KeyError for a type that is not in DEQUANTIZERS and RuntimeError for blocks of another
    size than the type's.
    """
    return DEQUANTIZERS[kind](blocks)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return f16(scale) * (nibbles(packed).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    scale, minimum, packed = torch.split_with_sizes(blocks, (2, 2, 16), -1)
    return f16(scale) * nibbles(packed).float() + f16(minimum)


def _q5_0(blocks: Tensor) -> Tensor:
    scale, high, packed = torch.split_with_sizes(blocks, (2, 4, 16), -1)
    return f16(scale) * (fifth_bit(packed, high).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    scale, minimum, high, packed = torch.split_with_sizes(blocks, (2, 2, 4, 16), -1)
    return f16(scale) * fifth_bit(packed, high).float() + f16(minimum)


def _q8_0(blocks: Tensor) -> Tensor:
    scale, numbers = torch.split_with_sizes(blocks, (2, 32), -1)
    return f16(scale) * numbers.view(torch.int8).float()


def _q4_k(blocks: Tensor) -> Tensor:
    scale, minimum, packed_scales, packed = torch.split_with_sizes(blocks, (2, 2, 12, 128), -1)
    numbers = chunks(packed)
    return _scaled_with_min(scale, minimum, packed_scales, numbers)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, minimum, packed_scales, high, packed = torch.split_with_sizes(
        blocks, (2, 2, 12, 32, 128), -1
    )
    low = chunks(packed)
    # Bit j of byte i belongs to number i of chunk j.
    bits = high.unsqueeze(-2) >> shifts(blocks, 1, 8) & 1
    return _scaled_with_min(scale, minimum, packed_scales, low | bits << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    packed, high, scales, scale = torch.split_with_sizes(blocks, (128, 64, 16, 2), -1)
    low = nibbles(torch.unflatten(packed, -1, (2, 64)))
    numbers = (low | pairs_of_bits(high).flatten(-2) << 4).flatten(-2).float() - 32
    factors = f16(scale) * scales.view(torch.int8).float()
    return (factors.unsqueeze(-1) * torch.unflatten(numbers, -1, (16, 16))).flatten(-2)


def _q2_k(blocks: Tensor) -> Tensor:
    packed_scales, packed, scale, minimum = torch.split_with_sizes(blocks, (16, 64, 2, 2), -1)
    factors = (f16(scale) * (packed_scales & LOW).float()).unsqueeze(-1)
    offsets = (f16(minimum) * (packed_scales >> 4).float()).unsqueeze(-1)
    numbers = torch.unflatten(pairs_of_bits(packed).flatten(-3), -1, (16, 16))
    return (factors * numbers.float() - offsets).flatten(-2)


def _q3_k(blocks: Tensor) -> Tensor:
    codes, factors = q3_k_codes(blocks)
    numbers = codes.float() - 4
    return (factors.unsqueeze(-1) * torch.unflatten(numbers, -1, (16, 16))).flatten(-2)


def _iq4_nl(blocks: Tensor) -> Tensor:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return f16(scale) * _looked_up(IQ4, nibbles(packed))


def _iq4_xs(blocks: Tensor) -> Tensor:
    codes, factors = iq4_xs_codes(blocks)
    return (factors.unsqueeze(-1) * _looked_up(IQ4, codes)).flatten(-2)


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent, packed = torch.split_with_sizes(blocks, (1, 16), -1)
    # Twice the numbers with half the scale, so that the largest scale is finite; no -0.0.
    numbers = _looked_up(tuple(2 * number + 0.0 for number in E2M1), nibbles(packed))
    return torch.ldexp(numbers, exponent.to(torch.int32) - BIAS - 1)


DEQUANTIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": f16,
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


def _looked_up(table: Sequence[float], codes: Tensor) -> Tensor:
    """The float32 numbers of codes 0 to 15."""
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.to(torch.int32)]


def _scaled_with_min(scale: Tensor, minimum: Tensor, packed: Tensor, numbers: Tensor) -> Tensor:
    """scale * s * q - minimum * m for numbers [..., 8, 32]; see scales_and_mins."""
    factors, offsets = scales_and_mins(scale, minimum, packed)
    return (factors.unsqueeze(-1) * numbers.float() - offsets.unsqueeze(-1)).flatten(-2)

# SPDX-License-Identifier: Apache-2.0
"""The integers that GGUF blocks hold, with their scales.

For the types whose weights are such: what kernels of integers in groups multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rtp_llm.ops.gemm.tiled_wna16_layout import Integers
from rtp_llm.ops.gguf.fields import (
    IQ4,
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


class IntegerKind(NamedTuple):
    """Bits of a code, columns of a group, and the function that takes blocks apart.

    `zeros`: whether groups have zero points.
    """

    bits: int
    group: int
    split: Callable[[Tensor], Integers]
    zeros: bool = False

    def num_bytes(self, weights: int) -> int:
        """The bytes of so many weights with scales and zero points in 16 bits."""
        return weights * self.bits // 8 + weights // self.group * (4 if self.zeros else 2)


def _q4_0(blocks: Tensor) -> Integers:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return Integers(nibbles(packed), f16(scale))


def _q4_1(blocks: Tensor) -> Integers:
    scale, minimum, packed = torch.split_with_sizes(blocks, (2, 2, 16), -1)
    return Integers(nibbles(packed), f16(scale), f16(minimum) + 8 * f16(scale))


def _q5_0(blocks: Tensor) -> Integers:
    scale, high, packed = torch.split_with_sizes(blocks, (2, 4, 16), -1)
    return Integers(fifth_bit(packed, high), f16(scale))


def _q5_1(blocks: Tensor) -> Integers:
    scale, minimum, high, packed = torch.split_with_sizes(blocks, (2, 2, 4, 16), -1)
    return Integers(fifth_bit(packed, high), f16(scale), f16(minimum) + 16 * f16(scale))


def _q8_0(blocks: Tensor) -> Integers:
    scale, numbers = torch.split_with_sizes(blocks, (2, 32), -1)
    return Integers(numbers ^ 0x80, f16(scale))


def _q4_k(blocks: Tensor) -> Integers:
    scale, minimum, packed_scales, packed = torch.split_with_sizes(blocks, (2, 2, 12, 128), -1)
    factors, offsets = scales_and_mins(scale, minimum, packed_scales)
    return Integers(chunks(packed).flatten(-2), factors, 8 * factors - offsets)


def _q5_k(blocks: Tensor) -> Integers:
    scale, minimum, packed_scales, high, packed = torch.split_with_sizes(
        blocks, (2, 2, 12, 32, 128), -1
    )
    factors, offsets = scales_and_mins(scale, minimum, packed_scales)
    bits = high.unsqueeze(-2) >> shifts(blocks, 1, 8) & 1
    codes = (chunks(packed) | bits << 4).flatten(-2)
    return Integers(codes, factors, 16 * factors - offsets)


def _q6_k(blocks: Tensor) -> Integers:
    packed, high, scales, scale = torch.split_with_sizes(blocks, (128, 64, 16, 2), -1)
    low = nibbles(torch.unflatten(packed, -1, (2, 64)))
    codes = (low | pairs_of_bits(high).flatten(-2) << 4).flatten(-2)
    return Integers(codes, f16(scale) * scales.view(torch.int8).float())


def _q3_k(blocks: Tensor) -> Integers:
    codes, factors = q3_k_codes(blocks)
    return Integers(codes + 28, factors)


def _iq4_nl(blocks: Tensor) -> Integers:
    scale, packed = torch.split_with_sizes(blocks, (2, 16), -1)
    return Integers(_of_iq4(nibbles(packed)), f16(scale))


def _iq4_xs(blocks: Tensor) -> Integers:
    codes, factors = iq4_xs_codes(blocks)
    return Integers(_of_iq4(codes).flatten(-2), factors)


def _of_iq4(codes: Tensor) -> Tensor:
    """8-bit codes of the numbers of IQ4."""
    numbers = torch.tensor(IQ4, dtype=torch.int32, device=codes.device) + 128
    return numbers.to(torch.uint8)[codes.to(torch.int32)]


INTEGERS: dict[str, IntegerKind] = {
    "Q4_0": IntegerKind(4, 32, _q4_0),
    "Q4_1": IntegerKind(4, 32, _q4_1, zeros=True),
    "Q5_0": IntegerKind(5, 32, _q5_0),
    "Q5_1": IntegerKind(5, 32, _q5_1, zeros=True),
    "Q8_0": IntegerKind(8, 32, _q8_0),
    "Q4_K": IntegerKind(4, 32, _q4_k, zeros=True),
    "Q5_K": IntegerKind(5, 32, _q5_k, zeros=True),
    "Q6_K": IntegerKind(6, 16, _q6_k),
    "Q3_K": IntegerKind(6, 16, _q3_k),
    "IQ4_NL": IntegerKind(8, 32, _iq4_nl),
    "IQ4_XS": IntegerKind(8, 32, _iq4_xs),
}

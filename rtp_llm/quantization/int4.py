# SPDX-License-Identifier: Apache-2.0
"""4-bit weights with a scale and a zero point for every GROUP_SIZE columns of a row.

Rounded to nearest: weight = scale * (code - zero), codes in [0, 15]; the smallest and the largest
weight of a group, and zero, are in its range. A weight is off by at most half its scale and what
moving the zero point to a whole number costs, half a scale again at the ends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, pack_bytes, unpack_bytes

BITS = 4
GROUP_SIZE = 128
_TOP = (1 << BITS) - 1
# float32 has no inverse of much smaller numbers; a group below this is zero.
_SMALLEST = 1e-30


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 [n, K / 2], scales float32 and zeros uint8 [n, ceil(K / GROUP_SIZE)] of a weight.

    weight [n, K] of any float dtype, K even; see int_groups.py for the layout. Rows are
    independent: parts of a matrix give the parts of its result. Raises ValueError if a weight is
    not finite.
    """
    rows, columns = weight.shape
    groups = -(-columns // GROUP_SIZE)
    padded = torch.zeros(rows, groups * GROUP_SIZE)
    padded[:, :columns] = weight
    grouped = padded.view(rows, groups, GROUP_SIZE)
    low, high = grouped.amin(dim=-1).clamp_(max=0), grouped.amax(dim=-1).clamp_(min=0)
    scale = (high - low) / _TOP
    if not scale.isfinite().all():
        raise ValueError("a weight is not finite")
    inverse = torch.where(scale > _SMALLEST, 1 / scale, 0)
    zero = (-low * inverse).round_()
    codes = (grouped * inverse[..., None] + zero[..., None]).round_().clamp_(0, _TOP)
    numbers = codes.view(rows, -1)[:, :columns].to(torch.uint8)
    return pack_bytes(numbers, BITS), scale, zero.to(torch.uint8)


def dequantize_rows(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The float32 weight [n, K] that quantize_rows() stands for."""
    codes = unpack_bytes(packed, BITS)
    return dequantize(codes, scale, zero, groups_in_order(codes.shape[1], GROUP_SIZE))

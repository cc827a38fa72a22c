# SPDX-License-Identifier: Apache-2.0
"""int8 weights with a float32 scale for every GROUP_SIZE columns of a row: 8.5 bits a weight.

Symmetric: weight = number * scale, numbers in [-127, 127]; the largest magnitude of a group is
exact. A weight is off by at most half its scale, 1/254 of that magnitude.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.gemm.int8_layout import GROUP_SIZE, num_groups, pack

__all__ = ["GROUP_SIZE", "dequantize_rows", "pack", "quantize_rows"]

_MAX_NUMBER = 127.0
# float32 has no inverse of much smaller numbers; a group below this is zero.
_SMALLEST = 1e-30


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [n, K] and scales float32 [n, ceil(K / GROUP_SIZE)] of weight [n, K] of any float dtype.

    Rows are independent: parts of a matrix give the parts of its result. Raises ValueError if a
    weight is not finite.
    """
    rows, columns = weight.shape
    groups = num_groups(columns)
    padded = torch.zeros(rows, groups * GROUP_SIZE)
    padded[:, :columns] = weight
    grouped = padded.view(rows, groups, GROUP_SIZE)
    largest = grouped.abs().amax(dim=-1)
    if not largest.isfinite().all():
        raise ValueError("a weight is not finite")
    kept = largest > _SMALLEST
    inverse = torch.where(kept, _MAX_NUMBER / largest, 0)
    numbers = (grouped * inverse[..., None]).round_().clamp_(-_MAX_NUMBER, _MAX_NUMBER)
    quantized = numbers.view(rows, -1)[:, :columns].to(torch.int8)
    return quantized, torch.where(kept, largest / _MAX_NUMBER, 0)


def dequantize_rows(quantized: Tensor, scale: Tensor) -> Tensor:
    """The float32 weight [n, K] that quantize_rows() stands for."""
    wide = scale.repeat_interleave(GROUP_SIZE, dim=1)[:, : quantized.shape[1]]
    return quantized.float() * wide

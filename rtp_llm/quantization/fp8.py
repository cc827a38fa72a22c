# SPDX-License-Identifier: Apache-2.0
"""Block-scaled FP8 weights as checkpoints hold them: e4m3 numbers, a float32 scale for every block.

A block has 128 x 128 weights; weight = number * scale, the largest magnitude of a block being 448.
The blocks at the end of a matrix may be smaller. `X.weight_scale_inv` in a checkpoint is this scale
(https://huggingface.co/deepseek-ai/DeepSeek-V3, inference/kernel.py: weight_dequant).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import BLOCK, num_blocks, quantize_weight

# The factor that widen() omits: float16 has 5 exponent bits with a bias of 15, e4m3 4 with 7.
WIDENED = 2.0**8


def padded(size: int) -> int:
    """Round a number of rows or columns up to whole blocks."""
    return num_blocks(size) * BLOCK


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [..., N, K] and scales float32 [..., ceil(N / 128), ceil(K / 128)] of a float weight.

    Bands of 128 rows are independent: quantising parts of a matrix that begin at block boundaries
    gives the parts of its result, bit-identical on every device. Raises ValueError if a weight is
    not finite.
    """
    numbers, scales = quantize_weight(weight)
    if not scales.isfinite().all():
        raise ValueError("a weight is not finite")
    return numbers, scales


def dequantize_blocks(numbers: Tensor, scales: Tensor) -> Tensor:
    """The float32 weight [..., N, K] that quantize_blocks() stands for; ValueError for a NaN."""
    return dequantize_rows(numbers, scales, 0)


def dequantize_rows(numbers: Tensor, scales: Tensor, start: int) -> Tensor:
    """The float32 rows [..., n, K] from row `start` of a weight; `scales` are the whole weight's.

    ValueError when a number is a NaN.
    """
    rows, columns = numbers.shape[-2:]
    wide = widen(numbers)
    # One multiplication for each band of blocks: scales as wide as the rows would cost more.
    by_column = (scales * WIDENED).repeat_interleave(BLOCK, dim=-1).narrow(-1, 0, columns)
    row = 0
    while row < rows:
        band, offset = divmod(start + row, BLOCK)
        height = min(BLOCK - offset, rows - row)
        wide.narrow(-2, row, height).mul_(by_column.narrow(-2, band, 1))
        row += height
    return wide


@dataclass(frozen=True)
class BlockRows:
    """The layout of the parts of a fused weight, each of which begins at a block boundary.

    A block has one scale, so two parts cannot share it: a part with a number of rows that is not a
    multiple of 128 is followed by rows of zeros, which appear as columns in the product.
    """

    parts: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each part."""
        return tuple(accumulate((padded(rows) for rows in self.parts), initial=0))[:-1]

    @property
    def total(self) -> int:
        """Number of rows of the fused weight, padded to whole blocks."""
        return sum(padded(rows) for rows in self.parts)

    @property
    def has_gaps(self) -> bool:
        """Whether there are padding rows between parts, not only after the last one."""
        return any(rows % BLOCK for rows in self.parts[:-1])

    def join(self, product: Tensor) -> Tensor:
        """Remove the padding columns: [T, total] -> [T, sum(parts)]."""
        if self.has_gaps:
            return torch.cat(list(self._slices(product)), dim=-1)
        used = sum(self.parts)
        return product if used == product.shape[-1] else product[:, :used].contiguous()

    def _slices(self, product: Tensor) -> Iterable[Tensor]:
        for start, rows in zip(self.starts, self.parts, strict=True):
            yield product.narrow(-1, start, rows)


def widen(numbers: Tensor) -> Tensor:
    """Cast e4m3 to float32, divided by WIDENED; bitwise, five times as fast as a CPU's cast."""
    bits = numbers.view(torch.int8)
    if ((bits & 0x7F) == 0x7F).any():
        raise ValueError("a weight is not a number")
    # Sign and the seven bits below it move to float16's, subnormal numbers included; the copy of
    # the sign that widening made goes.
    return (bits.to(torch.int16) << 7).bitwise_and_(~0x4000).view(torch.float16).float()

# SPDX-License-Identifier: Apache-2.0
"""FP8 weights with a float32 scale for each row: weight = number * scale."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.fp8.fp8_channel_reference import quantize_tokens
from rtp_llm.quantization.fp8 import WIDENED, widen


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [..., N, K] and scales float32 [..., N, 1] of a float weight; rows are independent.

    Raises ValueError if a weight is not finite.
    """
    numbers, scales = quantize_tokens(weight)
    if not scales.isfinite().all():
        raise ValueError("a weight is not finite")
    return numbers, scales


def dequantize_channels(numbers: Tensor, scales: Tensor, start: int = 0) -> Tensor:
    """The float32 rows [n, K] from row `start` of a weight; `scales` [N, 1] are the whole weight's.

    Raises ValueError if a number is a NaN.
    """
    return widen(numbers).mul_(scales[start : start + len(numbers)] * WIDENED)

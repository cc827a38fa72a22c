# SPDX-License-Identifier: Apache-2.0
"""Norms with a block-scaled FP8 result, the input of the products in rtp_llm.ops.fp8.fp8_gemm."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator
from rtp_llm.ops.fp8.fp8_activation import empty_quantized

MAX_CHANNELS = 16384


@operator(optional=True)
def norm_fp8(
    residual: MutableTensor,
    pending: Tensor | None,
    weight: Tensor,
    eps: float,
    norm_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """residual += pending, then fp8_quantize(rms_norm(residual, weight, eps, norm_offset)).

    residual [T, K] (modified in place) and pending [T, K] (None: nothing is added), with free row
    strides, weight [K], all of one float dtype; K is a multiple of 128 and at most MAX_CHANNELS.
    The sum is rounded to that dtype, its norm is not. Returns (q e4m3 [T, K], scales float32 [K /
    128, T rounded up to 4]). A device may lack it (ops.has_kernel). RuntimeError on a mismatch.
    """
    return empty_quantized(residual)

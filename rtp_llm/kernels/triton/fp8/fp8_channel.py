# SPDX-License-Identifier: Apache-2.0
"""FP8 with a scale for each token and each output channel, in Triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.fp8.fp8_channel_kernel import channel_linear_kernel, quantize_kernel

_COLUMNS = 128  # of a tile of the product
_STEP = 128  # columns of the operands per iteration


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.fp8_quantize_tokens."""
    if x.dim() != 2 or not x.is_contiguous() or not x.is_floating_point():
        raise RuntimeError(f"fp8_quantize_tokens: x is {x.dtype} {tuple(x.shape)}")
    rows, size = x.shape
    q = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    scales = x.new_empty((rows, 1), dtype=torch.float32)
    if rows > 0:
        block = triton.next_power_of_2(size)
        warps = 4 if block <= 4096 else 8
        quantize_kernel[(rows,)](q, scales, x, SIZE=size, BLOCK=block, num_warps=warps)
    return q, scales


def channel_linear(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """See rtp_llm.ops.fp8_channel_linear."""
    (rows, depth), size = q.shape, len(weight)
    if weight.shape != (size, depth) or scales.numel() != rows or weight_scales.numel() != size:
        shapes = [tuple(each.shape) for each in (q, scales, weight, weight_scales)]
        raise RuntimeError(f"fp8_channel_linear: shapes {shapes} do not fit together")
    out = q.new_empty((rows, size), dtype=torch.bfloat16)
    if rows == 0:
        return out
    tile = 16 if rows <= 16 else 64
    grid = (-(-size // _COLUMNS), -(-rows // tile))
    channel_linear_kernel[grid](
        out, q, scales, weight, weight_scales, rows, SIZE=size, DEPTH=depth, ROWS=tile,
        COLUMNS=_COLUMNS, STEP=_STEP, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out

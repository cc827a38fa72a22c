# SPDX-License-Identifier: Apache-2.0
"""Sums over ranks that write into each other's device memory, alone and with the norm behind them.

`buffers`, `state`, `capacity` and `most_blocks` are those of rank_buffers.py. In one shot each rank
sends its part to all others, which takes as many bytes of `capacity`. With `two_shot`, for three
ranks or more, each sums a slice (of rows where there is a norm, else of 16 bytes, of which there is
one for each rank or more) and sends that: of many ranks fewer bytes travel, and twice the longest
slice's are taken of `capacity`. Residuals are equal on all ranks before a call. A result that is
rounded to -0.0 may be +0.0 in two shots; all ranks have the same.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator
from rtp_llm.ops.fp8.fp8_activation import empty_quantized


@operator(optional=True)
def all_reduce(
    x: MutableTensor,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """x = its sum over the ranks, in their order in float32, rounded once; the same bits on all.

    x of float32, bfloat16 or float16, contiguous, a multiple of 16 bytes at such an address. A sum
    that is zero is +0.0. RuntimeError on a mismatch.
    """


@operator(optional=True)
def all_reduce_add_rms_norm(
    x: MutableTensor,
    residual: MutableTensor,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """In place: residual += the sum of x over the ranks, then x = rms_norm(residual, ...).

    Only the new residual is rounded, not the sum. x and residual [..., C] as x of rms_norm, of one
    shape and dtype, in different memory, and weight [C]; rows begin at multiples of 16 bytes.
    """


@operator(optional=True)
def all_reduce_add_rms_norm_fp8(
    x: Tensor,
    residual: MutableTensor,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
    two_shot: bool = False,
) -> tuple[Tensor, Tensor]:
    """norm_fp8(residual, the sum of x over the ranks, weight, ...), the same bits on all.

    As all_reduce_add_rms_norm, with x and residual [T, C], C a multiple of 128; x stays, and the
    norm is not rounded before it is quantised. Returns (q e4m3 [T, C], scales float32 [C / 128, T
    rounded up to 4]).
    """
    return empty_quantized(x)

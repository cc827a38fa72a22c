# SPDX-License-Identifier: Apache-2.0
"""Sums over ranks that write into each other's device memory, alone or followed by a norm.

`buffers`, `state`, `capacity` and `max_blocks` are described in rank_buffers.py. In one shot each
rank sends its part to all others, which takes as many bytes of `capacity`. With `two_shot`, for
three ranks or more, each rank sums a slice (of rows if there is a norm, else of units of 16 bytes;
at least one for each rank) and sends the sum: with many ranks fewer bytes travel, and the slice
needs `capacity` for twice the bytes of the longest one. Residuals must be equal on all ranks before
a call. A result that rounds to -0.0 may be +0.0 in two shots, on all ranks alike.
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
    max_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """In place: x = its sum over the ranks, in rank order in float32; the same bits on all ranks.

    The sum is rounded once. x of float32, bfloat16 or float16, contiguous; its address and size are
    multiples of 16 bytes. A zero sum is +0.0. RuntimeError on a mismatch.
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
    max_blocks: int = 0,
    two_shot: bool = False,
) -> None:
    """In place: residual += the sum of x over the ranks, then x = rms_norm(residual, ...).

    Only the new residual is rounded, not the sum. x and residual [..., C] as for rms_norm, of one
    shape and dtype and not overlapping; weight [C]. Rows begin at multiples of 16 bytes.
    RuntimeError on a mismatch.
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
    max_blocks: int = 0,
    two_shot: bool = False,
) -> tuple[Tensor, Tensor]:
    """norm_fp8(residual, the sum of x over the ranks, weight, ...), the same bits on all ranks.

    As all_reduce_add_rms_norm, with x and residual [T, C], C a multiple of 128; x is not modified,
    and the norm is not rounded before it is quantised. Returns (q e4m3 [T, C], scales float32 [C /
    128, T rounded up to 4]). RuntimeError on a mismatch.
    """
    return empty_quantized(x)

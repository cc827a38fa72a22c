# SPDX-License-Identifier: Apache-2.0
"""Products of rows that are sorted by expert with weights in 4 bits, which stay as they are stored.

MXFP4 (see mxfp4_blocks.py for the numbers), and codes of any table: NVFP4, nf4, fp4.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator(optional=True)
def mxfp4_grouped_linear(
    x: Tensor,
    blocks: Tensor,
    scales: Tensor,
    offsets: IndexTensor,
    bias: Tensor | None = None,
) -> Tensor:
    """grouped_linear with weights in MXFP4, plus bias[e]; sums are float32.

    x [R, K] of any float dtype, K a multiple of 32; blocks int8 [E, N, K / 2] and scales int8
    [E, N, K / 32] hold bytes; offsets int32 [E + 1] as in grouped_linear; bias [E, N] of x's dtype.
    Nothing is rounded but the sums and the result; a row gives the same bits in every batch.
    Returns [R, N]; rows from offsets[E] on are undefined. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape[0], blocks.shape[1])


@operator(optional=True)
def table4_grouped_linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    table: Tensor,
    offsets: IndexTensor,
    row_scales: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """grouped_linear with weights table[code] x scale, plus bias[e]; sums are float32.

    x [R, K] of any float dtype, K a multiple of 32; codes int8 [E, N, K / 2] hold bytes, the even
    column in the low four bits; table float32 [16]. scales float32 [E, N, K / G], G a multiple of
    16; or int8 [E, N, K / 16], whose bytes are numbers of e4m3, times row_scales float32 [E, N].
    offsets int32 [E + 1] as in grouped_linear; bias [E, N] of x's dtype. Nothing is rounded but
    products of scales, sums and the result; a row gives the same bits in every batch. Returns
    [R, N]; rows from offsets[E] on are undefined. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape[0], codes.shape[1])

# SPDX-License-Identifier: Apache-2.0
"""Products of rows that are sorted by expert with weights in MXFP4, which stay as they are stored.

See mxfp4_blocks.py for the numbers.
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

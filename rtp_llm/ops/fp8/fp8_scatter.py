# SPDX-License-Identifier: Apache-2.0
"""Quantises tokens to block-scaled FP8 at the places of their experts, as grouped products take
them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks, scale_rows

_UNIT = 4  # a ragged expert begins at a multiple of this many rows


def ragged_rows(entries: int, experts: int) -> int:
    """Rows that scatter_fp8_ragged needs for `entries` entries: each expert starts at a multiple of
    4.
    """
    return (entries + experts * (_UNIT - 1)) // _UNIT * _UNIT


@operator(composite=True)
def scatter_fp8(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """fp8_quantize(x), with each token's row at a place for each of its experts.

    x [T, K] of a float dtype, contiguous; ids int32 [T, k], each expert at most once per token;
    places int32 [T, k] and offsets int32 [E + 1] as returned by sort_by_expert(ids, E). Returns (q
    e4m3 [E, T, K rounded up to 128], scales float32 [E, K / 128, T rounded up to 4], rows int32 [T,
    k], counts int32 [E]): expert e has counts[e] rows in q[e]; rows has the place of each entry in
    q's first two axes flattened, -1 for ids outside [0, E). Other rows are undefined, columns from
    K on are zeros. RuntimeError on a mismatch.
    """
    experts, blocks = offsets.shape[0] - 1, num_blocks(x.shape[1])
    return (
        x.new_empty((experts, len(x), blocks * BLOCK), dtype=E4M3),
        x.new_empty((experts, blocks, scale_rows(len(x))), dtype=torch.float32),
        ids.new_empty(ids.shape),
        ids.new_empty(experts),
    )


@operator(composite=True)
def scatter_fp8_ragged(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """scatter_fp8 with the rows of all experts one expert after another, in one matrix.

    Returns (q e4m3 [M, K rounded up to 128], scales float32 [K / 128, M], rows int32 [T, k] of q,
    starts int32 [E + 1], counts int32 [E]) with M = T k + 3 E rounded down to 4: expert e has
    counts[e] rows from starts[e] on, a multiple of 4; starts[E] is the end of all rows.
    RuntimeError on a mismatch.
    """
    experts, blocks = offsets.shape[0] - 1, num_blocks(x.shape[1])
    count = ragged_rows(ids.shape[0] * ids.shape[1], experts)
    return (
        x.new_empty((count, blocks * BLOCK), dtype=E4M3),
        x.new_empty((blocks, count), dtype=torch.float32),
        ids.new_empty(ids.shape),
        ids.new_empty(experts + 1),
        ids.new_empty(experts),
    )

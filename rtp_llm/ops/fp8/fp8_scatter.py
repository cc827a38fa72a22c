# SPDX-License-Identifier: Apache-2.0
"""Tokens as block-scaled FP8 at the places of their experts, as grouped products take them."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks, scale_rows

_UNIT = 4  # rows at whose multiples a ragged expert may begin


def ragged_rows(entries: int, experts: int) -> int:
    """Rows of scatter_fp8_ragged for so many entries: those of each expert start at a unit."""
    return (entries + experts * (_UNIT - 1)) // _UNIT * _UNIT


@operator(composite=True)
def scatter_fp8(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """fp8_quantize(x), each token's row in a place for each of its experts.

    x [T, K] of a float dtype, contiguous; ids int32 [T, k], an expert at most once for a token;
    places int32 [T, k] and offsets int32 [E + 1] as sort_by_expert(ids, E) gives them. Returns (q
    e4m3 [E, T, K rounded up to 128], scales float32 [E, K / 128, T rounded up to 4], rows int32
    [T, k], counts int32 [E]): expert e has counts[e] rows in q[e]; rows says where each entry lies
    in q's first two axes together, -1 for ids outside [0, E). Other rows are anything, columns from
    K on zeros. RuntimeError on a mismatch.
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
    """scatter_fp8 with the experts' rows one after the other, in a place for all of them.

    Returns (q e4m3 [M, K rounded up to 128], scales float32 [K / 128, M], rows int32 [T, k] of q,
    starts int32 [E + 1], counts int32 [E]) with M = T k + 3 E rounded down to 4: expert e has
    counts[e] rows from starts[e] on, a multiple of 4; starts[E] is behind all of them.
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

# SPDX-License-Identifier: Apache-2.0
"""Tokens to the ranks of their experts and back, over memory that ranks write to directly.

Rank r has the experts r * slots to (r + 1) * slots - 1. Each rank has at most `rows` tokens in a
call, the same number on all of them, and has room for as many of every rank: nothing is counted
beforehand, and nothing waits for the host. `buffers`, `state`, `capacity` and `most_blocks` are
those of rank_buffers.py; dispatch_tokens and combine_tokens may share them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.collective.rank_buffers import PACK_BYTES
from rtp_llm.ops.declare import MutableTensor, operator

MOST_CHOICES = 64  # experts of a token


def message_bytes(rows: int, hidden: int, dtype: torch.dtype, k: int) -> int:
    """The `capacity` that both operators need for `rows` tokens of a rank with k choices each."""
    choices = 2 * -(-4 * k // PACK_BYTES) * PACK_BYTES
    return rows * (hidden * dtype.itemsize + choices) + PACK_BYTES


@operator(optional=True)
def dispatch_tokens(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    slots: int,
    rows: int,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all ranks for the experts here: x [ranks * rows, H], ids and weights [.., k].

    x [T, H] of float32, bfloat16 or float16, its rows multiples of 16 bytes, ids int32 [T, k] of
    experts (others, as -1, ask for nothing), weights float32 [T, k]; T at most `rows`, all
    contiguous. A row goes once to each rank that has an expert of the token.

    Row r * rows + t is token t of rank r. Its ids are slots of this rank, or -1; without a slot its
    x is undefined. A number that is -0.0 may come as +0.0. RuntimeError on a mismatch.
    """
    there = (buffers.shape[0] - 1) * rows
    return (
        x.new_empty(there, x.shape[1]),
        ids.new_empty(there, ids.shape[1]),
        weights.new_empty(there, ids.shape[1]),
    )


@operator(optional=True)
def combine_tokens(
    results: Tensor,
    ids_there: Tensor,
    ids: Tensor,
    slots: int,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
) -> Tensor:
    """Sums [T, H] over the ranks of what they computed for this rank's tokens.

    results [ranks * rows, H] are those of the rows that dispatch_tokens gave with ids_there; rows
    without a slot are not read. ids int32 [T, k] as it was given. Sums are made in float32, in the
    order of ranks, and rounded once; a token without an expert has 0. RuntimeError on a mismatch.
    """
    return results.new_empty(ids.shape[0], results.shape[1])

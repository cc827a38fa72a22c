# SPDX-License-Identifier: Apache-2.0
"""Sends tokens to the ranks of their experts and back, through memory that ranks write directly.

Rank r has the experts r * slots to (r + 1) * slots - 1. Each rank has at most `rows` tokens in a
call, with the same `rows` on all ranks, and room for that many tokens of every rank: nothing is
counted beforehand, and nothing waits for the host. `buffers`, `state`, `capacity` and `max_blocks`
are described in rank_buffers.py; dispatch_tokens and combine_tokens may share them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.collective.rank_buffers import PACK_BYTES
from rtp_llm.ops.declare import MutableTensor, operator

MAX_CHOICES = 64  # experts of a token


def message_bytes(rows: int, hidden: int, dtype: torch.dtype, k: int) -> int:
    """The `capacity` in bytes that both operators need for `rows` tokens a rank with k choices."""
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
    max_blocks: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """All ranks' tokens for this rank's experts: x, ids and weights of ranks * rows rows.

    Returns x [ranks * rows, H], ids and weights [ranks * rows, k].

    x [T, H] of float32, bfloat16 or float16 with rows of a multiple of 16 bytes, ids int32 [T, k]
    of experts (ids without an expert, such as -1, are ignored), weights float32 [T, k]; T at most
    `rows`, all contiguous. A row is sent once to each rank that has one of the token's experts.

    Row r * rows + t is token t of rank r. Its ids are slots of this rank, or -1; without a slot its
    x is undefined. A -0.0 may arrive as +0.0. RuntimeError on a mismatch.
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
    max_blocks: int = 0,
) -> Tensor:
    """Sums [T, H] over the ranks of what they computed for this rank's tokens.

    results [ranks * rows, H] belong to the rows that dispatch_tokens returned with ids_there; rows
    without a slot are not read. ids int32 [T, k] as given to dispatch_tokens. Sums are in float32,
    in rank order, and rounded once; a token without an expert gets zeros. RuntimeError on a
    mismatch.
    """
    return results.new_empty(ids.shape[0], results.shape[1])

# SPDX-License-Identifier: Apache-2.0
"""The best token of logits whose columns are divided among ranks.

`buffers`, `state`, `capacity` and `most_blocks` are those of rank_buffers.py.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(optional=True)
def best_token(
    logits: Tensor,
    tokens: MutableTensor,
    status: MutableTensor,
    first: int,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
) -> None:
    """In place: tokens int32 [R] and status int8 [R] of `sample` of rows that take the arg max, for
    all columns instead of this rank's.

    logits float32 [R, C] (the row stride is free) are the columns `first` to first + C - 1 of all;
    tokens and status what this rank has found in them. All ranks get the same: the largest logit,
    of equal ones the lowest token; NOT_FINITE where a rank says so, ALL_BANNED where no rank has a
    finite logit; the token is 0 there. 16 bytes of each row travel. RuntimeError on a mismatch.
    """

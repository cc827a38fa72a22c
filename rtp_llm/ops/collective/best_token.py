# SPDX-License-Identifier: Apache-2.0
"""The best token of logits with columns divided among ranks.

`buffers`, `state`, `capacity` and `max_blocks` are described in rank_buffers.py.
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
    max_blocks: int = 0,
) -> None:
    """In place: tokens and status as `sample` gives them for arg-max rows, over all ranks' columns.

    logits float32 [R, C] (the row stride is free) are the columns `first` to first + C - 1 of all;
    tokens int32 [R] and status int8 [R] hold what this rank found in them. All ranks get the same
    result: the token with the largest logit, the lowest token among equals; NOT_FINITE if any rank
    reports it, ALL_BANNED if no rank has a finite logit, both with token 0. Each row sends 16
    bytes. RuntimeError on a mismatch.
    """

# SPDX-License-Identifier: Apache-2.0
"""Lookup by index: rows of a table, and tokens of the previous step."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator
def embedding(ids: IndexTensor, table: Tensor) -> Tensor:
    """table[ids]: ids int32 [T], table [V, C] with a free row stride; returns [T, C].

    On the CPU an id outside [0, V) raises IndexError. RuntimeError on a mismatch.
    """
    return table.new_empty((ids.shape[0], table.shape[1]))


@operator
def substitute_tokens(ids: MutableTensor, previous: Tensor) -> None:
    """In place: ids[t] = max(0, previous[-ids[t] - 1]) wherever ids[t] is negative.

    ids int32 [T], previous int32 [R]. This lets a batch name tokens that the host does not know yet
    by their rows in the previous step. A missing draft, -1 in previous, becomes 0, a valid token.
    On the CPU a row outside [0, R) raises IndexError; elsewhere such an id is not modified.
    """

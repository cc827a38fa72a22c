# SPDX-License-Identifier: Apache-2.0
"""Rows of a table, and tokens of the step before, by index."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator
def embedding(ids: IndexTensor, table: Tensor) -> Tensor:
    """table[ids]: ids int32 [T], table [V, C] with a free row stride; returns [T, C].

    On the CPU an id outside [0, V) is an IndexError.
    """
    return table.new_empty((ids.shape[0], table.shape[1]))


@operator
def substitute_tokens(ids: MutableTensor, previous: Tensor) -> None:
    """ids[t] = max(0, previous[-ids[t] - 1]) wherever it is negative, in place; int32 [T] and [R].

    So a batch can name tokens that the host does not know yet: by their rows in the step before. A
    draft that is not there, -1 in previous, becomes a token that can be looked up.
    On the CPU a row outside [0, R) is an IndexError; elsewhere such an id stays as it is.
    """

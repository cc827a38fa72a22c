"""Rows of a table by index."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_EMBEDDING = operator("embedding")


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """table[ids]: ids int32 [T], table [V, C] with a free row stride; returns [T, C].

    On the CPU an id outside [0, V) is an IndexError.
    """
    return _EMBEDDING.call(ids, table)  # type: ignore[no-any-return]

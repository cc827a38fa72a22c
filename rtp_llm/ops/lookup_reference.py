"""Plain PyTorch reference and Meta function of the embedding."""

from __future__ import annotations

from torch import Tensor


def embedding_reference(ids: Tensor, table: Tensor) -> Tensor:
    """See rtp_llm.ops.embedding."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.shape[0]):
        raise IndexError(f"embedding: ids outside the {table.shape[0]} rows of the table")
    return table.index_select(0, ids)


def embedding_meta(ids: Tensor, table: Tensor) -> Tensor:
    """Shape and dtype of embedding."""
    return table.new_empty((ids.shape[0], table.shape[1]))

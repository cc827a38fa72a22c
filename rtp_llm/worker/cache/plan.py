"""How many blocks the KV cache has: arithmetic over the model, the settings and a memory budget."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.worker.cache.budget import MIB, CacheBudget, CacheSizeError


@dataclass(frozen=True)
class CacheShape:
    """What a token costs: ``token_elements`` in each of the ``group_layers`` of the groups."""

    group_layers: tuple[int, ...]
    token_elements: int
    element_size: int
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of every group, of all layers."""
        token = self.token_elements * self.element_size
        return sum(self.group_layers) * token * self.block_size

    def bytes_for(self, tokens: int) -> int:
        """Bytes of the blocks that hold ``tokens``, the padding block included."""
        return (-(-tokens // self.block_size) + 1) * self.block_bytes


@dataclass(frozen=True)
class CachePlan:
    """The decision: ``num_blocks`` of each group, of which block 0 only pads."""

    num_blocks: int
    block_size: int
    max_model_len: int
    bytes: int

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return (self.num_blocks - 1) * self.block_size


def plan_cache(
    shape: CacheShape, budget: CacheBudget, *, context: int, max_seq_len: int | None
) -> CachePlan:
    """Choose the number of blocks and the longest sequence.

    ``context`` is what the model was made for, ``max_seq_len`` what the user asked for (None:
    automatic, then the length shrinks to what the cache holds).

    Raises:
        CacheSizeError: a sequence of ``max_seq_len`` tokens, or of one block, does not fit.
    """
    wanted = max_seq_len or context
    blocks = max(0, budget.bytes) // shape.block_bytes
    capacity = max(0, blocks - 1) * shape.block_size
    if capacity < shape.block_size or (max_seq_len is not None and capacity < max_seq_len):
        need = -(-shape.bytes_for(wanted) // MIB)
        raise CacheSizeError(
            f"the KV cache holds {capacity} tokens with {budget.source}, but one sequence of "
            f"max_seq_len={wanted} tokens needs {need} MiB: {budget.remedy}, or lower max_seq_len"
        )
    return CachePlan(
        num_blocks=blocks,
        block_size=shape.block_size,
        max_model_len=min(wanted, capacity),
        bytes=blocks * shape.block_bytes,
    )

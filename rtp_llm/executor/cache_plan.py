"""How much memory the KV cache takes: arithmetic over the model, the settings and free memory."""

from __future__ import annotations

from dataclasses import dataclass

# Left to the operating system, the HTTP process and a step's activations.
RESERVED_FREE_SHARE = 0.3
# Without a setting a small model must stay small: the cache follows the weights.
WEIGHTS_MULTIPLE = 4
SMALLEST_AUTOMATIC_BYTES = 64 * 2**20


class CacheSizeError(ValueError):
    """The KV cache cannot be made big enough; the message has the numbers and the setting."""


@dataclass(frozen=True)
class CacheShape:
    """What a token costs: ``group_layers`` layers in each cache group, all with the same heads."""

    group_layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    element_size: int
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of every group: K and V of all layers."""
        token = 2 * self.num_kv_heads * self.head_dim * self.element_size
        return sum(self.group_layers) * token * self.block_size


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
    shape: CacheShape,
    *,
    context: int,
    max_seq_len: int | None,
    kv_cache_mem_mb: int | None,
    weight_bytes: int,
    free_bytes: int,
) -> CachePlan:
    """Choose the number of blocks and the longest sequence.

    ``context`` is what the model was made for, ``max_seq_len`` what the user asked for (None:
    automatic, then the length shrinks to what the cache holds).

    Raises:
        CacheSizeError: a sequence of ``max_seq_len`` tokens, or of one block, does not fit.
    """
    wanted = max_seq_len or context
    blocks = _affordable_blocks(shape, wanted, kv_cache_mem_mb, weight_bytes, free_bytes)
    capacity = (blocks - 1) * shape.block_size
    if capacity < shape.block_size or (max_seq_len is not None and capacity < max_seq_len):
        _refuse(shape, wanted, blocks, kv_cache_mem_mb, free_bytes)
    return CachePlan(
        num_blocks=blocks,
        block_size=shape.block_size,
        max_model_len=min(wanted, capacity),
        bytes=blocks * shape.block_bytes,
    )


def _affordable_blocks(
    shape: CacheShape, wanted: int, kv_cache_mem_mb: int | None, weight_bytes: int, free: int
) -> int:
    if kv_cache_mem_mb is not None:
        return kv_cache_mem_mb * 2**20 // shape.block_bytes
    one_sequence = _blocks_for(wanted, shape.block_size) * shape.block_bytes
    modest = max(SMALLEST_AUTOMATIC_BYTES, WEIGHTS_MULTIPLE * weight_bytes, one_sequence)
    return min(modest, int((1 - RESERVED_FREE_SHARE) * free)) // shape.block_bytes


def _blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens``, the padding block included."""
    return -(-tokens // block_size) + 1


def _refuse(
    shape: CacheShape, wanted: int, blocks: int, kv_cache_mem_mb: int | None, free: int
) -> None:
    need = -(-_blocks_for(wanted, shape.block_size) * shape.block_bytes // 2**20)
    capacity = max(0, blocks - 1) * shape.block_size
    if kv_cache_mem_mb is not None:
        source, change = f"kv_cache_mem_mb={kv_cache_mem_mb}", "raise it"
    else:
        source = f"the free memory ({free // 2**20} MiB, {RESERVED_FREE_SHARE:.0%} kept back)"
        change = "free memory or set kv_cache_mem_mb"
    raise CacheSizeError(
        f"the KV cache holds {capacity} tokens with {source}, but one sequence of "
        f"max_seq_len={wanted} tokens needs {need} MiB: {change}, or lower max_seq_len"
    )

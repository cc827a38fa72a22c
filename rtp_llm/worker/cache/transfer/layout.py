# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of a KV cache lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rtp_llm.worker.cache.kv_cache import KVCache

# Numbers of planes in the store's rows: keys, values, or both in one (latents).
_K, _V, _KV = 0, 1, 2
# Columns of a row: plane, position, key, address, rows, row bytes, row stride.
_COLUMNS = 7


@dataclass(frozen=True)
class Plane:
    """One range of a layer's cache: block ``b`` is ``bytes`` bytes at ``base + b * stride``."""

    number: int
    base: int
    stride: int
    bytes: int


@dataclass(frozen=True)
class BlockPart:
    """Blocks of one sequence in one cache group.

    ``positions`` int32 [N] in the sequence, ``keys`` int64 [N], ``blocks`` int32 [N] in the pool.
    """

    positions: NDArray[np.int64]
    keys: NDArray[np.int64]
    blocks: NDArray[np.int64]


@dataclass(frozen=True)
class PromptBlocks:
    """Blocks of one prompt that a step completes: a part for each cache group."""

    request_id: int
    parts: tuple[BlockPart, ...]

    @property
    def name(self) -> str:
        """The request's name in the store."""
        return str(self.request_id)


class CacheLayout:
    """The planes of `layers`, those with a cache; knows addresses, touches no memory."""

    def __init__(self, cache: KVCache) -> None:
        self.block_size = cache.block_size
        self._groups = cache.groups
        self.layer_group = cache.layer_group
        # Layers that read the cache of others have none.
        self.layers = tuple(i for i, group in enumerate(cache.layer_group) if group >= 0)
        self.planes = {layer: _planes(cache.layers[layer]) for layer in self.layers}
        self._block_bytes = sum(self.layer_bytes(layer, 1) for layer in self.layers)

    def bytes_of(self, tokens: int) -> int:
        """What the blocks of so many tokens take in all layers; windows may need less."""
        return -(-tokens // self.block_size) * self._block_bytes

    def layer_bytes(self, layer: int, blocks: int) -> int:
        """What so many blocks take in one layer."""
        return blocks * sum(plane.bytes for plane in self.planes[layer])

    def first_needed(self, group: int, length: int) -> int:
        """The first block that tokens from ``length`` on read, as the scheduler counts it."""
        if self.is_recurrent(group):  # the state after all before it
            return max(0, length - 1) // self.block_size
        window = self._groups[group].spec.window
        return max(0, length - window + 1) // self.block_size if window else 0

    def part(
        self, group: int, first: int, blocks: NDArray[np.int32], keys: NDArray[np.int64]
    ) -> BlockPart:
        """Table entries from ``first`` on, without those that hold nothing (-1)."""
        there = np.flatnonzero(blocks >= 0)
        positions = there + first
        return BlockPart(positions, keys[positions], blocks[there].astype(np.int64))

    def held(
        self, group: int, first: int, blocks: NDArray[np.int32], keys: NDArray[np.int64]
    ) -> BlockPart:
        """Of what was pinned from entry ``first`` on; of states that is the prompt's last alone."""
        start = len(keys) - len(blocks) if self.is_recurrent(group) else first
        return self.part(group, start, blocks, keys)

    def is_recurrent(self, group: int) -> bool:
        """It has states instead of tables."""
        return self._groups[group].spec.kind == "recurrent"

    def rows(self, layer: int, part: BlockPart) -> NDArray[np.int64]:
        """int64 [planes * N, 7], as the store reads them, with addresses in the cache itself."""
        return np.concatenate([self._plane_rows(plane, part) for plane in self.planes[layer]])

    @staticmethod
    def _plane_rows(plane: Plane, part: BlockPart) -> NDArray[np.int64]:
        addresses = plane.base + part.blocks * plane.stride
        return make_rows(plane.number, part, addresses, plane.bytes)


def make_rows(
    plane: int, part: BlockPart, addresses: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """int64 [N, 7] of blocks of ``size`` contiguous bytes each at ``addresses`` [N]."""
    rows = np.empty((len(addresses), _COLUMNS), np.int64)
    rows[:, 0] = plane
    rows[:, 1] = part.positions
    rows[:, 2] = part.keys
    rows[:, 3] = addresses
    rows[:, 4] = 1
    rows[:, 5] = rows[:, 6] = size
    return rows


def _planes(layer: Tensor) -> tuple[Plane, ...]:
    """Of a layer's cache [P, N, S, ...]: two planes are keys and values."""
    numbers = (_K, _V) if len(layer) == 2 else (_KV,)
    size = layer[0, 0].nbytes
    if not layer[0].is_contiguous():
        raise ValueError("blocks of a plane must lie one after the other")
    return tuple(
        Plane(number, layer[index].data_ptr(), size, size) for index, number in enumerate(numbers)
    )

# SPDX-License-Identifier: Apache-2.0
"""A sequence's blocks, between layers of a device's cache and host memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device

# From this many bytes on, copying a run takes longer than launching the copy.
_RUN_BYTES = 1 << 20


class BlockCopies:
    """Copies on the current stream, without waiting for them.

    Blocks that are adjacent in the cache, as a prompt's usually are, need one copy, which keeps no
    multiprocessor busy. If there would be many small copies, a kernel gathers or scatters instead.
    """

    def __init__(self, device: Device, blocks: NDArray[np.int64], block_bytes: int) -> None:
        """``block_bytes``: the size of a block in one plane of a layer."""
        self.runs = runs_of(blocks)
        self._ids: Tensor | None = None
        if len(self.runs) > 1 and len(self.runs) * _RUN_BYTES > len(blocks) * block_bytes:
            # Not from pageable memory: such a copy would wait for the step in flight.
            self._ids = device.upload(blocks)

    def to_host(self, memory: Tensor, host: Tensor) -> None:
        """Copy blocks of a layer [P, N, words] to pinned memory [P, blocks, words]."""
        if self._ids is not None:
            host.copy_(memory.index_select(1, self._ids), non_blocking=True)
            return
        for ours, theirs in self.runs:
            for source, target in zip(memory, host, strict=True):
                target[ours].copy_(source[theirs], non_blocking=True)

    def to_device(self, host: Tensor, memory: Tensor) -> None:
        """Copy blocks from pinned memory [P, blocks, words] to a layer [P, N, words]."""
        if self._ids is not None:
            memory.index_copy_(1, self._ids, host.to(memory.device, non_blocking=True))
            return
        for ours, theirs in self.runs:
            for source, target in zip(host, memory, strict=True):
                target[theirs].copy_(source[ours], non_blocking=True)


def runs_of(blocks: NDArray[np.int64]) -> list[tuple[slice, slice]]:
    """Ranges of ``blocks`` with consecutive block numbers, and those blocks."""
    cuts = [0, *(np.flatnonzero(np.diff(blocks) != 1) + 1).tolist(), len(blocks)]
    return [
        (slice(start, end), slice(int(blocks[start]), int(blocks[start]) + end - start))
        for start, end in itertools.pairwise(cuts)
        if end > start
    ]


def words_of(layer: Tensor) -> Tensor:
    """A layer's cache [P, N, ...] as [P, N, words of a block], the same memory.

    Words are int64 if a block is a whole number of them: gathering bytes takes eight times as long.
    """
    flat = layer.view(*layer.shape[:2], -1)
    return flat.view(torch.int64 if layer[0, 0].nbytes % 8 == 0 else torch.uint8)

# SPDX-License-Identifier: Apache-2.0
"""Where received blocks go: straight into the cache, or into host memory and then the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.cache.transfer.block_copies import BlockCopies, words_of
from rtp_llm.worker.cache.transfer.send_buffers import rows_of

if TYPE_CHECKING:
    from rtp_llm.device import Device, Event
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout
    from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool

Rows = Sequence[tuple[int, NDArray[np.int64]]]


class ReceiveBuffer(Protocol):
    """The places of one prompt's blocks."""

    @property
    def rows(self) -> Rows:
        """What the load is asked for: for each layer int64 [N, 7]."""

    @property
    def free(self) -> Event | None:
        """Reached when nothing else writes to these places or reads them; None: that is so."""

    def arrived(self, layers: Sequence[int]) -> None:
        """These layers are complete."""

    def finish(self) -> None:
        """All are: work that is asked of the device from now on sees them in the cache."""

    def abandon(self) -> None:
        """The load has failed: nothing writes to the cache when this returns."""


class InPlaceReceiveBuffer:
    """The cache itself, which steps in flight may still use: `free` comes after them.

    Work that is asked of the device after a load has ended sees its blocks: the host has seen that
    they were written.
    """

    def __init__(self, layout: CacheLayout, parts: Sequence[BlockPart], device: Device) -> None:
        self.free: Event | None = device.new_event()
        self.free.record()
        self.rows: Rows = [
            (layer, layout.rows(layer, parts[layout.layer_group[layer]]))
            for layer in layout.layers
            if len(parts[layout.layer_group[layer]].blocks)
        ]

    def arrived(self, layers: Sequence[int]) -> None:
        """Nothing to do: the blocks are already in place."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def abandon(self) -> None:
        """Nothing is left to do."""


class StagedReceiveBuffer:
    """Pinned memory, from where each layer goes to the device when it has arrived.

    The copies run on a stream of their own that begins after what the device has to do now: steps
    in flight may still write into blocks that were given to this prompt.
    """

    def __init__(
        self,
        layout: CacheLayout,
        parts: Sequence[BlockPart],
        cache: KVCache,
        device: Device,
        pool: PinnedPool,
    ) -> None:
        """Raises PoolFullError."""
        self.free: Event | None = None
        counts = [len(parts[layout.layer_group[layer]].blocks) for layer in layout.layers]
        pool.take(map(layout.layer_bytes, layout.layers, counts), self)
        self._device = device
        self._stream = device.new_stream()
        self._targets: dict[int, tuple[Tensor, Tensor, BlockCopies]] = {}
        self.rows: Rows = []
        rows = []
        copies: dict[int, BlockCopies] = {}
        for layer in layout.layers:
            group = layout.layer_group[layer]
            part = parts[group]
            if not len(part.blocks):
                continue
            memory = words_of(cache.layers[layer])
            shape = (memory.shape[0], len(part.blocks), memory.shape[2])
            host = device.pinned_empty(shape, memory.dtype)
            if group not in copies:
                copies[group] = BlockCopies(device, part.blocks, memory[0, 0].nbytes)
            self._targets[layer] = (host, memory, copies[group])
            rows.append((layer, rows_of(host, layout, layer, part)))
        self.rows = rows
        self._stream.wait_stream(device.current_stream())

    def arrived(self, layers: Sequence[int]) -> None:
        """Ask for their copies; waits for nothing."""
        with self._device.use_stream(self._stream), torch.inference_mode():
            for layer in layers:
                host, memory, copies = self._targets[layer]
                copies.to_device(host, memory)

    def finish(self) -> None:
        """Let the device's own work wait for the copies."""
        self._device.current_stream().wait_stream(self._stream)

    def abandon(self) -> None:
        """Wait for the copies: others may get the blocks."""
        self._stream.synchronize()

# SPDX-License-Identifier: Apache-2.0
"""Blocks on their way to the store: in place where the host reads the cache, else staged."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.cache.transfer.block_copies import BlockCopies, words_of
from rtp_llm.worker.cache.transfer.layout import make_rows
from rtp_llm.worker.cache.transfer.pinned_pool import rounded

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.device.streams import Stream
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.cache.transfer.interfaces import BlockStore, Counters
    from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout, PromptBlocks


class InPlaceSendBuffer:
    """Offers the blocks where they are: they must be held until the request has left the store."""

    keeps_blocks = True

    def __init__(self, store: BlockStore, layout: CacheLayout, metrics: Counters) -> None:
        self._store, self._layout, self._metrics = store, layout, metrics

    def send(self, layer: int, prompts: Sequence[PromptBlocks]) -> None:
        """Offer a layer's blocks."""
        began = time.monotonic()
        group, stored = self._layout.layer_group[layer], 0
        for prompt in prompts:
            rows = self._layout.rows(layer, prompt.parts[group])
            if len(rows) and self._store.store(prompt.name, layer, rows):
                stored += int(rows[:, 5].sum())
        self._metrics.add(stored_bytes=stored, store_seconds=time.monotonic() - began)


class StagedSendBuffer:
    """Copies blocks of a device into pinned memory of the host, on a stream of each thread's own.

    The pinned memory belongs to the store until the request has left it; the cache's blocks are
    free as soon as they are copied, which may be after the step.
    """

    keeps_blocks = False

    def __init__(
        self,
        store: BlockStore,
        layout: CacheLayout,
        metrics: Counters,
        cache: KVCache,
        device: Device,
    ) -> None:
        self._store, self._layout, self._metrics = store, layout, metrics
        self._device = device
        self._layers = [words_of(layer) for layer in cache.layers]
        self._pieces = PinnedBuffers(device)
        self._own = threading.local()

    def prepare(self, tokens: int, limit: int) -> None:
        """Take pieces for two steps of so many tokens now, at most ``limit`` bytes: while one is
        taken no step goes on."""
        blocks = -(-tokens // self._layout.block_size)
        for layer in 2 * self._layout.layers:
            size = rounded(self._layout.layer_bytes(layer, blocks))
            limit -= size
            if limit < 0:
                return
            self._pieces.add(size)

    def send(self, layer: int, prompts: Sequence[PromptBlocks]) -> None:
        """Copy a layer's blocks, wait for the copy, offer it."""
        began = time.monotonic()
        group, stored = self._layout.layer_group[layer], 0
        for prompt in prompts:
            part = prompt.parts[group]
            if not len(part.blocks):
                continue
            host = self._copy(layer, part)
            rows = rows_of(host, self._layout, layer, part)
            if self._store.store(prompt.name, layer, rows, owner=host):
                stored += host.nbytes
        self._metrics.add(stored_bytes=stored, store_seconds=time.monotonic() - began)

    def _copy(self, layer: int, part: BlockPart) -> Tensor:
        """Pinned memory [P, N, words] with the blocks; waits for the copy."""
        device = self._device
        stream = self._stream()
        memory = self._layers[layer]
        host = self._pieces.take((len(memory), len(part.blocks), memory.shape[2]), memory.dtype)
        try:
            with device.use_stream(stream), torch.inference_mode():
                copies = BlockCopies(device, part.blocks, memory[0, 0].nbytes)
                copies.to_host(memory, host)
        finally:
            stream.synchronize()  # before another copy may get the piece
        return host

    def _stream(self) -> Stream:
        stream: Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self._device.new_stream()
        return stream


class PinnedBuffers:
    """A pool of pinned memory: what the store releases serves a later copy.

    torch's own pool asks the newest event of a freed buffer first, mostly an upload that waits for
    the step in flight, and then allocates another one: 13 ms for 32 MiB, in which nothing can be
    launched. Whoever returns a buffer to this pool has waited for its copy.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: defaultdict[int, deque[Tensor]] = defaultdict(deque)

    def add(self, size: int) -> None:
        """One more for tensors of so many bytes."""
        self._free[rounded(size)].append(self._new(size))

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Not initialised; free again when the tensor is gone, in whatever thread."""
        size = math.prod(shape) * dtype.itemsize
        free = self._free[rounded(size)]
        try:
            piece = free.pop()
        except IndexError:
            piece = self._new(size)
        taken = piece[:size].view(dtype).view(shape)
        weakref.finalize(taken, free.append, piece).atexit = False
        return taken

    def _new(self, size: int) -> Tensor:
        return self._device.pinned_empty((rounded(size),), torch.uint8)


def rows_of(host: Tensor, layout: CacheLayout, layer: int, part: BlockPart) -> NDArray[np.int64]:
    """The store's rows of blocks that lie in ``host`` [P, N, words]."""
    count, size = host.shape[1], host.shape[2] * host.itemsize
    rows = []
    for index, plane in enumerate(layout.planes[layer]):
        addresses = host[index].data_ptr() + np.arange(count, dtype=np.int64) * size
        rows.append(make_rows(plane.number, part, addresses, size))
    return np.concatenate(rows)

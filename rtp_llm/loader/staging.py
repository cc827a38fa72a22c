# SPDX-License-Identifier: Apache-2.0
"""Staging buffers for rows of a checkpoint on their way into a model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device, Event

# For rows that a core converts: fits into its cache.
_CACHED_BYTES = 2**20
# For rows that a device copies: enough to reach its rate.
_COPIED_BYTES = 4 * 2**20


class Staging:
    """Per-thread buffers. If copies from them are asynchronous, each thread has two, so that it can
    read into one while the other is being copied.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._places = 1 if device.shares_memory else 2
        self.size = _CACHED_BYTES if device.shares_memory else _COPIED_BYTES
        self._local = threading.local()

    def next(self, size: int) -> Tensor:
        """Return a buffer, uint8 [size], whose previous contents have been copied."""
        buffers = self._buffers()
        buffers.turn = (buffers.turn + 1) % self._places
        buffers.sent[buffers.turn].synchronize()
        memory = buffers.memory[buffers.turn]
        if len(memory) < size:
            memory = buffers.memory[buffers.turn] = self._new(size)
        return memory[:size]

    def sent(self) -> None:
        """Mark that copies from this thread's last buffer have been enqueued."""
        buffers = self._buffers()
        buffers.sent[buffers.turn].record()

    def _buffers(self) -> _Buffers:
        found: _Buffers | None = getattr(self._local, "buffers", None)
        if found is None:
            memory = [self._new(self.size) for _ in range(self._places)]
            found = _Buffers(memory, [self._device.new_event() for _ in memory])
            self._local.buffers = found
        return found

    def _new(self, size: int) -> Tensor:
        return self._device.pinned_empty((size,), torch.uint8)


class _Buffers:
    def __init__(self, memory: list[Tensor], sent: list[Event]) -> None:
        self.memory, self.sent = memory, sent
        self.turn = 0

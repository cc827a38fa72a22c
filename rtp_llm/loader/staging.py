# SPDX-License-Identifier: Apache-2.0
"""Memory through which rows of a checkpoint pass on their way into a model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device, Event

# Fits into a core's cache, for rows that a core converts.
_CACHED_BYTES = 2**20
# For rows that a device copies: enough to reach its rate.
_COPIED_BYTES = 4 * 2**20


class Staging:
    """Each thread's own buffers. Where they are copied from without waiting, a thread has two, so
    that it reads into one while the other is copied.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._places = 1 if device.shares_memory else 2
        self.size = _CACHED_BYTES if device.shares_memory else _COPIED_BYTES
        self._local = threading.local()

    def next(self, size: int) -> Tensor:
        """uint8 [size] to write into; what was in it before is in its place by now."""
        buffers = self._buffers()
        buffers.turn = (buffers.turn + 1) % self._places
        buffers.sent[buffers.turn].synchronize()
        memory = buffers.memory[buffers.turn]
        if len(memory) < size:
            memory = buffers.memory[buffers.turn] = self._new(size)
        return memory[:size]

    def sent(self) -> None:
        """Copies from this thread's last buffer have been asked for."""
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

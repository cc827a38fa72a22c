# SPDX-License-Identifier: Apache-2.0
"""Numbers that the host writes in every step, at a fixed device address that graphs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm.device.base import Device

_HOST_BUFFERS = 2


class StagedNumbers:
    """`on_device` is int32 [size], filled alternately from two pinned host buffers.

    With two buffers the host can write the next step's numbers while the device may still be
    reading this step's.
    """

    def __init__(self, device: Device, size: int) -> None:
        self.on_device = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._hosts = [device.pinned_empty((size,), torch.int32) for _ in range(_HOST_BUFFERS)]
        self._arrays: list[NDArray[np.int32]] = [host.numpy() for host in self._hosts]
        self._sent = [device.new_event() for _ in range(_HOST_BUFFERS)]
        self._turn = 0

    def begin(self) -> NDArray[np.int32]:
        """Return the array [size] for the next numbers; its contents are stale."""
        self._turn = (self._turn + 1) % _HOST_BUFFERS
        self._sent[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self, count: int) -> None:
        """Copy the first `count` numbers of that array to `on_device`, without waiting."""
        host = self._hosts[self._turn]
        self.on_device[:count].copy_(host[:count], non_blocking=True)
        self._sent[self._turn].record()

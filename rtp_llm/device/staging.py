# SPDX-License-Identifier: Apache-2.0
"""Numbers that the host writes in every step and that graphs read at one place on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm.device.base import Device

_HOST_BUFFERS = 2


class StagedNumbers:
    """`on_device` is int32 [size], filled from one of two pinned host buffers in turn.

    With two of them the host can write the next step's numbers while the device may still have to
    read this step's.
    """

    def __init__(self, device: Device, size: int) -> None:
        self.on_device = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._hosts = [device.pinned_empty((size,), torch.int32) for _ in range(_HOST_BUFFERS)]
        self._arrays: list[NDArray[np.int32]] = [host.numpy() for host in self._hosts]
        self._sent = [device.new_event() for _ in range(_HOST_BUFFERS)]
        self._turn = 0

    def begin(self) -> NDArray[np.int32]:
        """The array [size] to write the next numbers into; what is in it is old."""
        self._turn = (self._turn + 1) % _HOST_BUFFERS
        self._sent[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self, count: int) -> None:
        """Copy the first `count` numbers of that array to `on_device`, without waiting."""
        host = self._hosts[self._turn]
        self.on_device[:count].copy_(host[:count], non_blocking=True)
        self._sent[self._turn].record()

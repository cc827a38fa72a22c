# SPDX-License-Identifier: Apache-2.0
"""Numbers that are often the same in the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device


class KeptUpload:
    """Copies arrays to the device if they differ from those of the last call."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: tuple[NDArray[Any], ...] = ()
        self._tensors: list[Tensor] = []

    def upload(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """Like `Device.upload_all`; nobody may change the arrays or the tensors afterwards."""
        same = len(arrays) == len(self._arrays) and all(map(np.array_equal, arrays, self._arrays))
        if not same:
            self._arrays, self._tensors = arrays, self._device.upload_all(*arrays)
        return self._tensors

# SPDX-License-Identifier: Apache-2.0
"""Numbers that have not changed are not copied again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.worker.inputs.kept_upload import KeptUpload


class CountingDevice(CpuDevice):
    """Counts the copies."""

    copies = 0

    def upload_all(self, *arrays: NDArray[np.int32]) -> list[Tensor]:
        self.copies += 1
        return super().upload_all(*arrays)


def test_only_other_numbers_are_copied() -> None:
    device = CountingDevice()
    kept = KeptUpload(device)
    for values in ([1, 2, 3], [1, 2, 3], [1, 2], [1, 5]):
        found, constant = kept.upload(np.array(values), np.zeros(2))
        assert found.tolist() == values
        assert constant.tolist() == [0, 0]
    assert device.copies == 3
    (alone,) = kept.upload(np.array([1, 5]))
    assert alone.tolist() == [1, 5]
    assert device.copies == 4

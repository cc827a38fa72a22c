# SPDX-License-Identifier: Apache-2.0
"""Tests of numbers that are written on the host and read on the device."""

from __future__ import annotations

import numpy as np

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.staging import StagedNumbers
from rtp_llm.testing.fake_torch import gpu_in_host_memory


def test_what_is_sent_arrives_and_the_rest_stays():
    for device in (CpuDevice(), gpu_in_host_memory()[0]):
        numbers = StagedNumbers(device, 5)
        assert numbers.on_device.tolist() == [0] * 5
        numbers.begin()[:] = 7
        numbers.send(3)
        assert numbers.on_device.tolist() == [7, 7, 7, 0, 0]
        place = numbers.on_device.data_ptr()
        numbers.begin()[:2] = (1, 2)
        numbers.send(2)
        assert numbers.on_device.tolist() == [1, 2, 7, 0, 0]
        assert numbers.on_device.data_ptr() == place


def test_two_pinned_buffers_take_turns_each_after_its_own_copy():
    device, fake = gpu_in_host_memory()
    numbers = StagedNumbers(device, 4)
    assert fake.pinned == 2
    first, second, third = (_next(numbers) for _ in range(3))
    assert np.shares_memory(first, third)
    assert not np.shares_memory(first, second)
    assert sorted(event.records for event in numbers._sent) == [1, 2]
    assert [event.waits for event in numbers._sent] == [event.records for event in numbers._sent]
    assert fake.pinned == 2


def _next(numbers):
    array = numbers.begin()
    numbers.send(4)
    return array

# SPDX-License-Identifier: Apache-2.0
"""Tests of the buffers between files and a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.loader.staging import Staging


class Event:
    def __init__(self, log, number):
        self._log, self._number = log, number

    def record(self, stream=None):
        self._log.append(f"sent {self._number}")

    def synchronize(self):
        self._log.append(f"wait {self._number}")


class Copying(CpuDevice):
    """A device whose copies go on after the call."""

    shares_memory = False

    def __init__(self):
        super().__init__()
        self.log, self.events = [], 0

    def new_event(self, timed=False):
        self.events += 1
        return Event(self.log, self.events - 1)


def test_a_buffer_is_written_again_only_when_its_copies_are_done():
    device = Copying()
    staging = Staging(device)
    places = []
    for _ in range(4):
        places.append(staging.next(100).data_ptr())
        staging.sent()
    assert places[0] != places[1]
    assert places[:2] == places[2:]
    order = ["wait 1", "sent 1", "wait 0", "sent 0"]
    assert device.log == 2 * order


def test_where_nothing_is_copied_there_is_one_buffer():
    staging = Staging(CpuDevice())
    assert staging.next(10).data_ptr() == staging.next(20).data_ptr()


def test_a_row_may_be_larger_than_a_buffer():
    staging = Staging(Copying())
    for size in (staging.size + 1, 3, 5 * staging.size):
        memory = staging.next(size)
        assert (memory.dtype, memory.shape) == (torch.uint8, (size,))
        memory.fill_(7)


def test_each_thread_has_its_own():
    staging = Staging(Copying())
    mine = staging.next(8)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(staging.next, 8).result()
    mine.fill_(1)
    other.fill_(2)
    assert mine.tolist() == [1] * 8

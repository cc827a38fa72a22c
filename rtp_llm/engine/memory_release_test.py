# SPDX-License-Identifier: Apache-2.0
"""A restarted engine waits for its predecessor's memory, and says how that went."""

from __future__ import annotations

import logging

import msgspec
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.client.process_client import ProcessClient
from rtp_llm.engine.memory_release import await_memory, await_memory_environment
from rtp_llm.testing.engine.scripted_engine import build

GIB = 2**30


class Gpu(CpuDevice):
    """One of which so much is free in the end."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free
        self.wanted: list[int] = []

    def await_free_memory(self, wanted: int, seconds: float) -> int:
        assert seconds > 0
        self.wanted.append(wanted)
        return self.free


@pytest.mark.parametrize(("free", "level"), [(79, logging.INFO), (40, logging.WARNING)])
def test_the_level_before_the_first_start_is_awaited_nearly(caplog, free, level):
    caplog.set_level(logging.INFO, "rtp_llm.engine")
    device = Gpu(free * GIB)
    assert await_memory(device, await_memory_environment(80 * GIB)) == free * GIB
    assert 0.9 * 80 * GIB < device.wanted[0] < 80 * GIB
    (record,) = caplog.records
    assert record.levelno == level and "memory of the dead engine" in record.getMessage()


def test_a_first_start_waits_for_nothing(caplog):
    caplog.set_level(logging.INFO, "rtp_llm.engine")
    device = Gpu(80 * GIB)
    assert await_memory(device, {}) == 80 * GIB
    assert device.wanted == [0] and not caplog.records
    assert await_memory(CpuDevice(), await_memory_environment(80 * GIB)) == 0


def test_successors_await_what_was_free_before_the_first_of_them():
    client = ProcessClient()
    assert client.successor().expected_free_bytes == 0, "nobody knows"
    ready = build(Settings(model="scripted")).ready
    client.ready = msgspec.structs.replace(ready, free_bytes=1)
    second = client.successor()

    second.ready = msgspec.structs.replace(client.ready, free_bytes=99)
    assert second.successor().expected_free_bytes == 1

# SPDX-License-Identifier: Apache-2.0
"""Tests of what is shown while weights load."""

from __future__ import annotations

import io
import logging

import pytest

from rtp_llm.device import resolve_device
from rtp_llm.loader.progress import LoadProgress

MIB = 2**20


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_terminal_gets_a_bar_with_bytes_rate_and_memory(clock, caplog):
    terminal = Terminal()
    progress = LoadProgress(resolve_device("cpu"), terminal, clock)
    progress.start(400 * MIB)
    clock.now += 0.5
    progress.advance(100 * MIB)
    text = terminal.getvalue()
    assert "[######..................] 25% of 400.0 MiB, 200.0 MiB/s, memory " in text
    clock.now += 0.01  # too soon to draw again
    progress.advance(100 * MIB)
    assert terminal.getvalue() == text
    with caplog.at_level(logging.INFO, "rtp_llm.loader"):
        progress.finish()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()
    assert len(caplog.records) == 1


def test_without_a_terminal_nothing_is_drawn(clock, caplog):
    pipe = io.StringIO()
    progress = LoadProgress(resolve_device("cpu"), pipe, clock)
    with caplog.at_level(logging.INFO, "rtp_llm.loader"):
        progress.start(2000 * MIB)
        for _ in range(20):
            clock.now += 1.0
            progress.advance(100 * MIB)
        progress.finish()
    assert pipe.getvalue() == ""
    messages = [record.message for record in caplog.records]
    assert len(messages) == 3  # after 10 s, after 20 s, at the end
    assert messages[0].startswith("loading weights: 50% of 1.95 GiB, 100.0 MiB/s, memory ")
    assert messages[-1].startswith("loaded 100% of 1.95 GiB, 100.0 MiB/s")
    assert messages[-1].endswith("in 20.0 s")


def test_an_empty_model_is_no_division_by_zero(clock):
    progress = LoadProgress(resolve_device("cpu"), Terminal(), clock)
    progress.start(0)
    clock.now += 1
    progress.advance(0)
    progress.finish()


def test_bytes_are_reported_as_they_arrive(clock):
    reports = []
    device = resolve_device("cpu")
    progress = LoadProgress(device, io.StringIO(), clock, lambda *each: reports.append(each))
    progress.start(50)
    for count in (20, 30):
        progress.advance(count)
    assert reports == [(20, 50), (50, 50)]

# SPDX-License-Identifier: Apache-2.0
"""Processes that a signal holds, and readers that were held themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from rtp_llm.worker.ranks.stopped import LOOK_SECONDS, STOPPED_SECONDS, StopWatch, is_stopped

_TIMEOUT = 60.0


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def send(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
    deadline = time.monotonic() + _TIMEOUT
    while is_stopped(pid) != (number == signal.SIGSTOP):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def look(watch: StopWatch, start: float, seconds: float) -> tuple[bool, float]:
    """What the last of the looks in so many seconds said, and when it was."""
    stopped, now, end = False, start, start + seconds
    while now < end:
        now += LOOK_SECONDS
        stopped = watch.look(now)
    return stopped, now


def test_a_stopped_process_is_noticed_and_a_waiting_one_is_not(pid: int) -> None:
    watch, now = StopWatch(pid), time.monotonic()
    assert not look(watch, now, 600.0)[0]
    send(pid, signal.SIGSTOP)
    stopped, now = look(watch, now, STOPPED_SECONDS)
    assert not stopped
    assert look(watch, now, LOOK_SECONDS)[0]


def test_one_that_goes_on_in_time_counts_anew(pid: int) -> None:
    watch, now = StopWatch(pid), time.monotonic()
    send(pid, signal.SIGSTOP)
    _, now = look(watch, now, STOPPED_SECONDS)
    send(pid, signal.SIGCONT)
    _, now = look(watch, now, LOOK_SECONDS)
    send(pid, signal.SIGSTOP)
    assert not look(watch, now, STOPPED_SECONDS)[0]


def test_a_reader_that_was_stopped_with_its_group_gives_the_others_time(pid: int) -> None:
    watch, now = StopWatch(pid), time.monotonic()
    send(pid, signal.SIGSTOP)
    _, now = look(watch, now, STOPPED_SECONDS)
    assert not watch.look(now + 600)
    assert not look(watch, now + 600, STOPPED_SECONDS / 2)[0]
    assert look(watch, now + 600 + STOPPED_SECONDS / 2, STOPPED_SECONDS)[0]


def test_one_that_is_gone_is_not_stopped(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert not is_stopped(pid)
    assert not is_stopped(2**22 + 1)

# SPDX-License-Identifier: Apache-2.0
"""Code that is ended when it takes too long."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from rtp_llm.server.offload.time_limit import TakesTooLong, TimeLimit


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Endless:
    """Its end takes longer than anything may."""

    def __del__(self) -> None:
        work(60)


def test_an_interruption_that_is_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []

    def report(unraisable: Any) -> None:
        work(0.3)  # longer than the limit
        reported.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", report)
    with pytest.raises(TakesTooLong), TimeLimit(0.1).inside():
        Endless()
        work(60)
    assert reported == [TakesTooLong]


def test_another_thread_has_no_limit_and_interrupts_nobody() -> None:
    limit, returned = TimeLimit(0.01), threading.Event()

    def run() -> None:
        with limit.inside():
            work(0.1)
        returned.set()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert returned.is_set()

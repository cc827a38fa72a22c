# SPDX-License-Identifier: Apache-2.0
"""Which chats the event loop renders, where a template is slow for some or for all."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from rtp_llm.server.offload import inline_limit
from rtp_llm.server.offload.inline_limit import InlineLimit


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        monkeypatch.setattr(inline_limit.time, "monotonic", lambda: self.now)


def test_a_slow_body_counts_for_a_while_and_is_logged_each_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, limit = Clock(monkeypatch), InlineLimit(4096)
    limit.note(4000, 0.001)
    assert limit.takes(4096) and not limit.takes(4097)
    limit.note(3000, 0.05)
    limit.note(2000, 0.05)
    assert limit.takes(1999) and not limit.takes(2000)
    clock.now += 21
    assert limit.takes(4096)
    assert limit.takes(4096)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "3000 bytes took 50 ms" in caplog.text


def test_one_that_is_slow_again_counts_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limit = Clock(monkeypatch), InlineLimit(4096)
    waits = []
    for _ in range(9):
        limit.note(100, 0.05)
        began = clock.now
        while not limit.takes(100):
            clock.now += 5
        waits.append(clock.now - began)
    assert waits[0] == 10 and waits[-1] == 600
    assert all(b == min(2 * a, 600) for a, b in pairwise(waits))
    clock.now += 601
    limit.note(100, 0.05)
    clock.now += 10
    assert limit.takes(100), "long ago"


def test_a_slow_template_takes_shorter_bodies_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limit = Clock(monkeypatch), InlineLimit(4096)
    limit.set_template_speed(0.01)
    assert limit.takes(4096)
    limit.set_template_speed(0.08)
    assert limit.takes(1024) and not limit.takes(1025)
    clock.now += 1e5
    assert not limit.takes(1025)

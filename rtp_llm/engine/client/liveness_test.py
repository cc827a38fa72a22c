# SPDX-License-Identifier: Apache-2.0
"""When a process counts as silent, and when its reader was only held up itself."""

from __future__ import annotations

import time

import pytest

from rtp_llm.engine.client.liveness import GONE_SECONDS, SILENCE_SECONDS, Liveness
from rtp_llm.engine.messages import EngineLog, EngineStats


def look(signs: Liveness, start: float, seconds: float) -> float:
    """The reader looks ten times a second and finds nothing; when it has done so."""
    for tenth in range(int(seconds * 10)):
        signs.look(start + tenth / 10)
    return start + seconds


def test_silence_is_reported_after_its_timeout() -> None:
    signs, now = Liveness(), time.monotonic()
    signs.receive(EngineLog(level=20, message=""), now)
    later = look(signs, now, SILENCE_SECONDS)
    assert not signs.silent(later)
    assert signs.failure(later, 100) is None
    later = look(signs, later, 0.2)
    assert signs.silent(later)
    assert signs.failure(later, 100) is None
    later = look(signs, later, GONE_SECONDS)
    assert signs.failure(later, 100) == "the engine process gave no sign of life for 10 s"


def test_a_reader_that_was_away_gives_the_process_time() -> None:
    signs, now = Liveness(), time.monotonic()
    signs.receive(EngineStats(), now)
    now += 600
    assert not signs.silent(now)  # who asks comes before the reader
    signs.look(now)
    assert not signs.silent(now)
    assert signs.silent(look(signs, now, SILENCE_SECONDS + 0.2))


def test_what_was_heard_before_the_reader_counts_its_absence_is_not_of_the_future() -> None:
    signs, now = Liveness(), time.monotonic() + 600
    signs.receive(EngineStats(), now)
    signs.look(now)
    assert signs.silent(look(signs, now, SILENCE_SECONDS + 0.2))


@pytest.mark.parametrize(("steps", "hangs"), [(0, True), (1, False)])
def test_a_step_that_hangs_is_reported_despite_heartbeats(steps: int, hangs: bool) -> None:
    signs, now = Liveness(), time.monotonic()
    for tenth in range(40):
        signs.look(now + tenth / 10)
        age = tenth / 10 + 0.01
        signs.receive(EngineStats(steps=steps * tenth, step_age=age), now + tenth / 10)
    reason = signs.failure(now + 4, 3)
    assert reason == ("a step hangs: it has taken longer than step_timeout=3 s" if hangs else None)

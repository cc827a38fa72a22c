# SPDX-License-Identifier: Apache-2.0
"""Tests of the times of a start."""

from __future__ import annotations

from rtp_llm.engine.start.phases import Phases


def test_phases_follow_one_another():
    times = iter([10.0, 12.5, 12.75])
    phases = Phases(lambda: next(times))
    phases.end("imports")
    phases.end("device")
    assert str(phases) == "imports 2.50 s, device 0.25 s"
    assert phases.total == 2.75

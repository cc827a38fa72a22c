# SPDX-License-Identifier: Apache-2.0
"""When a step counts as one that hangs."""

from __future__ import annotations

import pytest

from rtp_llm.engine.client.step_watch import StepWatch
from rtp_llm.engine.messages import EngineStats


def watch(*beats: tuple[float, int, float]) -> StepWatch:
    """A watch that took heartbeats of (when, steps finished, age of the present step)."""
    made = StepWatch()
    for now, steps, age in beats:
        made.take(EngineStats(steps=steps, step_age=age), now)
    return made


@pytest.mark.parametrize(
    ("beats", "age"),
    [
        ([], 0),
        ([(10, 5, 0.0), (20, 5, 0.0)], 0),
        ([(10, 5, 0.1), (11, 5, 1.1), (12, 5, 2.1)], 2),
        ([(10, 5, 0.1), (11, 5, 1.1), (12, 6, 1.5), (13, 6, 2.5)], 1),
        ([(10, 5, 0.5), (11, 5, 0.2), (14, 5, 3.2)], 3),
        ([(10, 5, 0.5), (11, 5, 0.0)], 0),
    ],
    ids=["silent", "idle", "one step", "a new step", "a new step not counted yet", "ended"],
)
def test_the_age_is_of_one_step(beats: list[tuple[float, int, float]], age: float) -> None:
    assert watch(*beats).age == age


def test_time_in_which_the_reader_slept_does_not_count() -> None:
    stopped = watch((10, 5, 0.1), (610, 5, 600.1))
    stopped.pause(599.8)
    assert stopped.age == pytest.approx(0.2)

# SPDX-License-Identifier: Apache-2.0
"""Notices a step that hangs: the heartbeat has a thread of its own and continues meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.engine.messages import EngineStats


class StepWatch:
    """For how long heartbeats have shown one and the same step, by the reader's own clock.

    The age that the engine reports would not do: it grows also while the whole process group is
    stopped (Ctrl-Z), and then nobody hangs. Of a time without heartbeats nothing is known.
    """

    def __init__(self) -> None:
        self._latest: EngineStats | None = None
        self._since = self._received = 0.0

    def take(self, stats: EngineStats, now: float) -> None:
        """A heartbeat came."""
        before, self._latest = self._latest, stats
        if before is None or stats.steps != before.steps or stats.step_age <= before.step_age:
            self._since = now
        self._received = now

    def pause(self, seconds: float) -> None:
        """The reader itself was late by so much; that time does not count."""
        self._since += seconds

    @property
    def age(self) -> float:
        """Seconds for which one step has been seen; 0 between steps and when idle."""
        running = self._latest is not None and self._latest.step_age > 0
        return max(0.0, self._received - self._since) if running else 0.0

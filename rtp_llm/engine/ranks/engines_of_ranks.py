# SPDX-License-Identifier: Apache-2.0
"""Engines of several tensor-parallel ranks each that have experts for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.engine.ranks.rank_steps import RankSteps
    from rtp_llm.engine.ranks.tensor_ranks import TensorRanks


class EnginesOfRanks:
    """The StepGroup of one of them: first ranks agree among engines, then lead their own."""

    def __init__(self, ranks: TensorRanks, engines: RankSteps) -> None:
        self._ranks, self._engines = ranks, engines

    @property
    def stopped(self) -> bool:
        """See StepGroup."""
        return self._engines.stopped

    def wake(self, number: int) -> None:
        """See StepGroup."""
        self._engines.wake(number)

    def leave(self) -> None:
        """See StepGroup; the other ranks of this engine end."""
        self._engines.stop()
        self._ranks.leave()

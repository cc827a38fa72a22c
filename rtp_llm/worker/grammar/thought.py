# SPDX-License-Identifier: Apache-2.0
"""Where a sequence is in its thinking."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.constraints import Thinking


class Phase(Enum):
    """OPENING: the output may begin with ``begin_ids``, or be an answer already."""

    OPENING = 1
    THINKING = 2
    OVER = 3


@dataclass(frozen=True)
class Thought:
    """``matched``: so many of ``begin_ids`` (OPENING) or of ``end_ids`` (THINKING) are the last
    tokens; ``count``: tokens of thinking so far."""

    thinking: Thinking
    phase: Phase
    matched: int = 0
    count: int = 0

    @classmethod
    def of(cls, thinking: Thinking) -> Thought:
        """At the beginning of an output."""
        return cls(thinking, Phase.OPENING if thinking.begin_ids else Phase.THINKING)

    @property
    def next_of_opening(self) -> int:
        """OPENING: the token that would go on opening it."""
        return self.thinking.begin_ids[self.matched]

    @property
    def forced(self) -> int | None:
        """The token that must come, because the budget is used up."""
        budget = self.thinking.budget
        if self.phase is not Phase.THINKING or budget is None or self.count < budget:
            return None
        return self.thinking.end_ids[self.matched]

    def after(self, token: int) -> Thought:
        """The state after one more token. One that does not open the thinking is already part of
        the answer."""
        if self.phase is Phase.OPENING:
            if token != self.next_of_opening:
                return replace(self, phase=Phase.OVER)
            if self.matched + 1 < len(self.thinking.begin_ids):
                return replace(self, matched=self.matched + 1)
            return replace(self, phase=Phase.THINKING, matched=0)
        if self.phase is Phase.OVER:
            return self
        matched = self._match(token)
        phase = Phase.OVER if matched == len(self.thinking.end_ids) else Phase.THINKING
        return replace(self, phase=phase, matched=matched, count=self.count + 1)

    def _match(self, token: int) -> int:
        """The longest beginning of ``end_ids`` that the last tokens are."""
        ids = self.thinking.end_ids
        last = (*ids[: self.matched], token)
        for length in range(min(len(last), len(ids)), 0, -1):
            if last[len(last) - length :] == ids[:length]:
                return length
        return 0

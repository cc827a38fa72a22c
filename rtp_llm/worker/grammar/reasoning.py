# SPDX-License-Identifier: Apache-2.0
"""Where a sequence is in its thinking."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.request.constraints import Thinking


class Phase(Enum):
    """OPENING: the output may begin with ``begin_ids``, or be an answer already."""

    OPENING = 1
    THINKING = 2
    OVER = 3


@dataclass(frozen=True)
class ReasoningState:
    """``matched`` is how many of ``begin_ids`` (OPENING) or ``end_ids`` (THINKING) the last tokens
    match; ``count`` is the number of thinking tokens so far."""

    thinking: Thinking
    phase: Phase
    matched: int = 0
    count: int = 0

    @classmethod
    def of(cls, thinking: Thinking) -> ReasoningState:
        """The state at the beginning of an output."""
        return cls(thinking, Phase.OPENING if thinking.begin_ids else Phase.THINKING)

    @property
    def next_of_opening(self) -> int:
        """In OPENING: the next token of ``begin_ids``."""
        return self.thinking.begin_ids[self.matched]

    @property
    def forced(self) -> int | None:
        """The token that must come next because the budget is used up; None while it is not."""
        budget = self.thinking.budget
        if self.phase is not Phase.THINKING or budget is None or self.count < budget:
            return None
        return self.thinking.end_ids[self.matched]

    def after(self, token: int) -> ReasoningState:
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
        """The length of the longest prefix of ``end_ids`` that the last tokens match."""
        ids = self.thinking.end_ids
        last = (*ids[: self.matched], token)
        for length in range(min(len(last), len(ids)), 0, -1):
            if last[len(last) - length :] == ids[:length]:
                return length
        return 0

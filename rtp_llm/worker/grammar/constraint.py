# SPDX-License-Identifier: Apache-2.0
"""What one sequence may generate next: its thinking first, then an answer that obeys a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from rtp_llm.worker.grammar.reasoning import Phase, ReasoningState

if TYPE_CHECKING:
    from rtp_llm.request.constraints import Thinking
    from rtp_llm.worker.grammar.library import Matcher
    from rtp_llm.worker.grammar.row_masks import MaskWriter


class Constraint:
    """Follows committed tokens, never drafts. Without a grammar only thinking is limited.

    While it may still turn out that the output opens its thinking, the answer is followed, too.
    """

    def __init__(
        self, grammar: Matcher | None, thinking: Thinking | None, eos_token_ids: Sequence[int]
    ) -> None:
        """``grammar`` must be at its beginning; it is copied."""
        self._start, self._eos = grammar, eos_token_ids
        self._reasoning = None if thinking is None else ReasoningState.of(thinking)
        self._matcher = None if self._is_thinking(self._reasoning) else self._begun()
        self.error: str | None = None

    def accept(self, token: int) -> None:
        """The sequence has gained ``token``. What the grammar forbids becomes its ``error``."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.phase is Phase.OVER:
            self._follow(self._matcher, token)
            return
        self._reasoning = reasoning.after(token)
        if reasoning.phase is Phase.THINKING:
            if self._reasoning.phase is Phase.OVER:
                self._matcher = self._begun()
            return
        if self._reasoning.phase is Phase.OVER:
            self._follow(self._matcher, token)
        elif self._reasoning.phase is Phase.THINKING or not self._goes_on(self._matcher, token):
            self._matcher = None

    def copy(self) -> Constraint:
        """A copy in the same state; both follow their own tokens."""
        copied = copy(self)
        copied._matcher = None if self._matcher is None else self._matcher.copy()
        return copied

    def restart(self) -> Constraint:
        """The same constraint at the beginning of an output."""
        thinking = None if self._reasoning is None else self._reasoning.thinking
        return Constraint(self._start, thinking, self._eos)

    def write(self, writer: MaskWriter, row: int, drafts: Sequence[int]) -> None:
        """Write the masks of the batch's ``row`` and of the rows after it, one for each draft.

        Rows after a draft that the grammar forbids may get any mask.
        """
        reasoning, matcher = self._reasoning, self._matcher
        if reasoning is None and matcher is not None:
            writer.follow(matcher, row, drafts)
            return
        if drafts and matcher is not None and reasoning and reasoning.phase is Phase.OPENING:
            matcher = matcher.copy()
        for place in range(len(drafts) + 1):
            if reasoning is None or reasoning.phase is Phase.OVER:
                if matcher is not None:
                    writer.follow(matcher, row + place, drafts[place:])
                return
            self._write_reasoning(writer, row + place, reasoning, matcher)
            if place < len(drafts):
                reasoning, matcher = self._after(reasoning, matcher, drafts[place])

    def _write_reasoning(
        self, writer: MaskWriter, row: int, reasoning: ReasoningState, matcher: Matcher | None
    ) -> None:
        """One row before the answer, or where it is open whether that has begun."""
        if (forced := reasoning.forced) is not None:
            writer.only(row, forced)
        elif self._start is None:
            return
        elif reasoning.phase is Phase.THINKING:
            writer.without(row, self._eos)
        elif matcher is None:
            writer.only(row, reasoning.next_of_opening)
        else:
            # The matcher advances before masks are filled.
            writer.follow(matcher.copy(), row, (), also=reasoning.next_of_opening)

    def _after(
        self, reasoning: ReasoningState, matcher: Matcher | None, draft: int
    ) -> tuple[ReasoningState, Matcher | None]:
        following = reasoning.after(draft)
        if reasoning.phase is Phase.THINKING:
            return following, self._start if following.phase is Phase.OVER else None
        goes_on = following.phase is not Phase.THINKING and self._goes_on(matcher, draft)
        return following, matcher if goes_on else None

    def count_valid(self, drafts: Sequence[int]) -> int:
        """How many of ``drafts`` it accepts; none while the thinking may be opening."""
        reasoning, matcher = self._reasoning, self._matcher
        for place, draft in enumerate(drafts):
            if reasoning is None or reasoning.phase is Phase.OVER:
                rest = drafts[place:]
                return place + (len(rest) if matcher is None else matcher.count_valid(rest))
            if reasoning.phase is Phase.OPENING and self._start is not None:
                return place
            if reasoning.forced not in (None, draft):
                return place
            if self._start is not None and draft in self._eos:
                return place
            reasoning = reasoning.after(draft)
            matcher = self._start
        return len(drafts)

    def forced(self) -> list[int]:
        """Tokens that must come next, as far as they are known."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.phase is Phase.OVER:
            if self._matcher is None:
                return []
            return [self._eos[0]] if self._matcher.done else self._matcher.forced()
        if reasoning.forced is None:
            return []
        ending = list(reasoning.thinking.end_ids[reasoning.matched :])
        return ending + (self._start.forced() if self._start is not None else [])

    def _begun(self) -> Matcher | None:
        return None if self._start is None else self._start.copy()

    @staticmethod
    def _is_thinking(reasoning: ReasoningState | None) -> bool:
        return reasoning is not None and reasoning.phase is Phase.THINKING

    def _goes_on(self, matcher: Matcher | None, token: int) -> bool:
        """Advance ``matcher`` by ``token``; returns whether it can."""
        if matcher is None or token in self._eos or matcher.count_valid([token]) != 1:
            return False
        return matcher.accept(token)

    def _follow(self, matcher: Matcher | None, token: int) -> None:
        if matcher is None or token in self._eos:
            return
        if not matcher.accept(token):
            self.error = matcher.error or f"token {token} is not what the grammar allows"

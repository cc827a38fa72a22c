# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine and what proposes draft tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan


class Proposer(Protocol):
    """Proposes tokens that sequences may go on with. Belongs to the engine's thread."""

    @property
    def max_draft_tokens(self) -> int:
        """The most for one sequence in one step, 1 to 63."""

    @property
    def needs_tokens(self) -> bool:
        """Whether it proposes nothing after a pending token. Sequences then skip a step that
        overlaps with one of theirs. Otherwise only sequences with drafts in flight skip it, unless
        the device corrects their plans: see optimistic_drafts of the scheduler."""

    @property
    def constrained_only(self) -> bool:
        """It proposes for sequences with a grammar or a budget of thinking alone: the others never
        wait for it."""

    def add(self, sequences: NewSequences) -> None:
        """Sequences that were queued."""

    def fork(self, forked: ForkedSequences) -> None:
        """Sequences that continue another one: it proposes for them if it does for that one."""

    def end(self, ids: Iterable[int]) -> None:
        """Sequences that were aborted."""

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        """Drafts for the step that is about to be scheduled, for whichever sequences.

        ``in_flight`` is the step whose tokens are pending. Drafts follow a sequence's last token,
        a pending one included; those of sequences that take no part in the step, or compute their
        prompts in it, are ignored, and no more are taken than fit. Each is an id of the vocabulary,
        or -1, which is never accepted.
        """

    def observe(self, result: Result) -> None:
        """A step was committed: the tokens that count, and who ended."""

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        """The first token of a sequence whose prompt another worker computed."""


class _NoDrafts(Proposer):
    max_draft_tokens = 0
    needs_tokens = False
    constrained_only = False

    def add(self, sequences: NewSequences) -> None:
        return

    def fork(self, forked: ForkedSequences) -> None:
        return

    def end(self, ids: Iterable[int]) -> None:
        return

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        return None

    def observe(self, result: Result) -> None:
        return

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        return


NO_DRAFTS: Proposer = _NoDrafts()

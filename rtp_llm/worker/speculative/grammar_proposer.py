# SPDX-License-Identifier: Apache-2.0
"""Drafts that a grammar, or the end of a budget of thinking, leaves no choice about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan


class GrammarProposer:
    """Forced tokens are verified like any draft, never put into an answer: a grammar forces
    characters, and the model may spell them in other tokens."""

    needs_tokens = True
    constrained_only = True

    def __init__(self, num_tokens: int) -> None:
        self.max_draft_tokens = num_tokens
        self.constraints: Constraints | None = None  # until the engine is built
        self._ids: set[int] = set()

    def add(self, sequences: NewSequences) -> None:
        if sequences.constrained and sequences.sampling.speculate:
            self._ids.update(sequences.ids)

    def fork(self, forked: ForkedSequences) -> None:
        if forked.source in self._ids:
            self._ids.update(forked.ids)

    def end(self, ids: Iterable[int]) -> None:
        self._ids.difference_update(ids)

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        if self.constraints is None or not self._ids:
            return None
        pending = set() if in_flight is None else set(in_flight.row_ids.tolist())
        forced = [
            (each, tokens)
            for each in self._ids - pending
            if (tokens := self.constraints.forced(each)[: self.max_draft_tokens])
        ]
        if not forced:
            return None
        ids = np.array([each for each, _ in forced], np.int64)
        lengths = np.array([len(tokens) for _, tokens in forced], np.int32)
        drafts = np.full((len(forced), int(lengths.max())), -1, np.int32)
        for row, (_, tokens) in enumerate(forced):
            drafts[row, : len(tokens)] = tokens
        return ids, drafts, lengths

    def observe(self, result: Result) -> None:
        self.end(result.ids[np.flatnonzero(result.finish)].tolist())

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        if ended:
            self.end([sequence])

# SPDX-License-Identifier: Apache-2.0
"""Notifies the worker, the proposer and the constraints of an engine's sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rtp_llm._runtime import Result
    from rtp_llm.engine.prompt_inputs import EmbeddingBudget
    from rtp_llm.request.constraints import Thinking
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.grammar.constraint import Constraint
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.grammar.library import Matcher
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.speculative.proposer import Proposer
    from rtp_llm.worker.worker import Worker


class OpenSequences:
    """Notifies all of them when sequences start, gain tokens and end. Belongs to the engine's
    thread."""

    def __init__(
        self,
        worker: Worker,
        proposer: Proposer,
        constraints: Constraints,
        embeddings: EmbeddingBudget,
    ) -> None:
        self._worker, self._proposer, self._constraints = worker, proposer, constraints
        self._watched: set[int] = set()  # sequences with somebody to notify of their end
        self._embeddings = embeddings

    @property
    def watched(self) -> Collection[int]:
        """Sequences that somebody must be notified of when they end."""
        return self._watched

    def add(self, new: NewSequences, grammar: Matcher | None, thinking: Thinking | None) -> None:
        """Report the sequences of a request that were queued."""
        if new.constrained:
            self._constraints.add(new.ids, new.slots, grammar, thinking)
        self._worker.add(new)
        if not new.prompt_only:
            self._proposer.add(new)
        has_more = bool(new.processors or new.mm_features) or new.constrained
        watched = has_more or self._worker.keeps_sequences
        self._watched.update(new.ids if watched else ())

    def fork(self, forked: ForkedSequences, constraints: Sequence[Constraint]) -> None:
        """Report sequences that continue another one, and their constraints if it has one."""
        self._constraints.fork(forked, constraints)
        self._worker.fork(forked)
        self._proposer.fork(forked)
        self._embeddings.fork(forked)
        if forked.source in self._watched:
            self._watched.update(forked.ids)

    def observe(self, result: Result) -> None:
        """Report a committed step."""
        self._proposer.observe(result)
        self._constraints.observe(result)
        if self._watched:
            self.end(result.ids[np.flatnonzero(result.finish)].tolist())

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        """Report that another worker computed a prompt and sampled ``token``, which may have ended
        the sequence."""
        self._proposer.receive(sequence, token, ended=ended)
        self._constraints.accept(sequence, token)
        if ended:
            self.end([sequence])

    def end(self, ids: Iterable[int]) -> None:
        """Report sequences that have ended."""
        ended = self._watched.intersection(ids)
        self._constraints.end(ended)
        self._worker.end(ended, aborted=False)
        self._embeddings.give_back(ended)
        self._watched -= ended

    def abort(self, ids: Iterable[int]) -> None:
        """Report aborted sequences, in whatever state."""
        ids = list(ids)
        self._constraints.end(ids)
        self._worker.end(ids, aborted=True)
        self._proposer.end(ids)
        self._embeddings.give_back(ids)
        self._watched.difference_update(ids)

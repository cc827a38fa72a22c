# SPDX-License-Identifier: Apache-2.0
"""The sequences of an engine, as the worker, the proposer and the constraints are told of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rtp_llm._runtime import Result
    from rtp_llm.constraints import Thinking
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.grammar.library import Matcher
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.speculative.proposer import Proposer
    from rtp_llm.worker.worker import Worker


class OpenSequences:
    """Tells each of them of sequences that come, gain tokens and end. The engine's thread."""

    def __init__(self, worker: Worker, proposer: Proposer, constraints: Constraints) -> None:
        self._worker, self._proposer, self._constraints = worker, proposer, constraints
        self._watched: set[int] = set()  # those whose end somebody wants to hear of

    @property
    def watched(self) -> Collection[int]:
        """Those whose end somebody wants to hear of."""
        return self._watched

    def add(self, new: NewSequences, grammar: Matcher | None, thinking: Thinking | None) -> None:
        """The sequences of a request were queued."""
        if new.constrained:
            self._constraints.add(new.ids, new.slots, grammar, thinking)
        self._worker.add(new)
        self._proposer.add(new)
        watched = new.processors or new.constrained or self._worker.keeps_sequences
        self._watched.update(new.ids if watched else ())

    def observe(self, result: Result) -> None:
        """A step was committed."""
        self._proposer.observe(result)
        self._constraints.observe(result)
        if self._watched:
            self.end(result.ids[np.flatnonzero(result.finish)].tolist())

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        """Another worker computed its prompt and sampled ``token``, which ended it or not."""
        self._proposer.receive(sequence, token, ended=ended)
        self._constraints.accept(sequence, token)
        if ended:
            self.end([sequence])

    def end(self, ids: Iterable[int]) -> None:
        """Sequences have come to their end."""
        ended = self._watched.intersection(ids)
        self._constraints.end(ended)
        self._worker.end(ended, aborted=False)
        self._watched -= ended

    def abort(self, ids: Iterable[int]) -> None:
        """Sequences are not wanted any more, whatever state they are in."""
        ids = list(ids)
        self._constraints.end(ids)
        self._worker.end(ids, aborted=True)
        self._proposer.end(ids)
        self._watched.difference_update(ids)

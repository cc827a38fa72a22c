# SPDX-License-Identifier: Apache-2.0
"""A proposer that knows what sequences will say, and proposes that or what a test makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan

Distort = Callable[[np.random.Generator, list[int]], list[int]]


def another(token: int) -> int:
    """A token that is not this one; models of tests have at least two."""
    return token - 1 if token else 1


def right(random: np.random.Generator, drafts: list[int]) -> list[int]:
    """Drafts as they are."""
    return drafts


def wrong(random: np.random.Generator, drafts: list[int]) -> list[int]:
    """None of them is right."""
    return [another(token) for token in drafts]


def unknown(random: np.random.Generator, drafts: list[int]) -> list[int]:
    """All of them -1."""
    return [-1] * len(drafts)


def ragged(random: np.random.Generator, drafts: list[int]) -> list[int]:
    """Any number of them, some wrong, some -1."""
    drafts = drafts[: int(random.integers(0, len(drafts) + 1))]
    for place, kind in enumerate(random.random(len(drafts)).tolist()):
        if kind < 0.2:
            drafts[place] = -1 if kind < 0.1 else another(drafts[place])
    return drafts


class ScriptedProposer:
    """``script`` has the whole output of each sequence, by its id."""

    def __init__(
        self,
        script: Mapping[int, list[int]],
        distort: Distort = right,
        *,
        max_draft_tokens: int = 4,
        needs_tokens: bool = False,
    ) -> None:
        self.max_draft_tokens = max_draft_tokens
        self.needs_tokens = needs_tokens
        self.constrained_only = False
        self.accepted = 0
        self.lengths: set[int] = set()  # of what was proposed in one step
        self.known: dict[int, int] = {}  # tokens of the output so far, by sequence
        self._script, self._distort = script, distort
        self._random = np.random.default_rng(5)

    def add(self, sequences: NewSequences) -> None:
        self.known.update(dict.fromkeys(sequences.ids, 0))

    def fork(self, forked: ForkedSequences) -> None:
        return

    def end(self, ids: Iterable[int]) -> None:
        for each in ids:
            self.known.pop(each, None)

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        pending = set() if in_flight is None else set(in_flight.row_ids.tolist())
        found: dict[int, list[int]] = {}
        for each, count in self.known.items():
            begin = count + (each in pending)
            if begin:
                following = self._script[each][begin : begin + self.max_draft_tokens]
                found[each] = self._distort(self._random, following)
        if not found:
            return None
        lengths = np.array([len(drafts) for drafts in found.values()], np.int32)
        self.lengths.update(lengths.tolist())
        tokens = np.full((len(found), self.max_draft_tokens), 7, np.int32)
        for row, drafts in enumerate(found.values()):
            tokens[row, : len(drafts)] = drafts
        return np.array(list(found), np.int64), tokens, lengths

    def observe(self, result: Result) -> None:
        columns = (result.ids, result.num_tokens, result.finish)
        for each, count, finish in zip(*(column.tolist() for column in columns), strict=True):
            self.accepted += max(0, count - 1)
            if finish:
                self.known.pop(each, None)
            elif each in self.known:
                self.known[each] += count

# SPDX-License-Identifier: Apache-2.0
"""Drafts that the device makes: the engine only says how many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan


class DeviceProposer:
    """As many drafts as possible for every sequence; a Drafter finds them.

    Drafts after a pending token are found like any others: the device has both.
    """

    needs_tokens = False
    constrained_only = False

    def __init__(self, num_tokens: int) -> None:
        self.max_draft_tokens = num_tokens
        self._ids: set[int] = set()
        self._drafts: Drafts | None = None

    def add(self, sequences: NewSequences) -> None:
        if sequences.sampling.speculate:
            self._ids.update(sequences.ids)
            self._drafts = None

    def fork(self, forked: ForkedSequences) -> None:
        if forked.source in self._ids:
            self._ids.update(forked.ids)
            self._drafts = None

    def end(self, ids: Iterable[int]) -> None:
        self._ids.difference_update(ids)
        self._drafts = None

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        if self._drafts is None and self._ids:
            ids, count = np.fromiter(self._ids, np.int64), self.max_draft_tokens
            unknown = np.full((len(ids), count), -1, np.int32)
            self._drafts = ids, unknown, np.full(len(ids), count, np.int32)
        return self._drafts

    def observe(self, result: Result) -> None:
        ended: NDArray[np.int64] = result.ids[np.flatnonzero(result.finish)]
        if len(ended):
            self.end(ended.tolist())

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        if ended:
            self.end([sequence])

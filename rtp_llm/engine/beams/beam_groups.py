# SPDX-License-Identifier: Apache-2.0
"""The beam searches of an engine, between its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.beam_group import BeamGroup
from rtp_llm.engine.columns import beam_columns, error_columns
from rtp_llm.engine.messages import INDEX_BITS, SEQUENCE_ERRORS, StepOutput

if TYPE_CHECKING:
    from rtp_llm._runtime import Result, Scheduler
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.heads.sampler import Logprobs
    from rtp_llm.worker.worker import StepOutputs


@dataclass
class _Search:
    """The sequences ``ids`` of a request, and the candidates of those that have theirs."""

    ids: list[int]
    group: BeamGroup
    values: NDArray[np.float32]
    tokens: NDArray[np.int32]
    there: set[int] = field(default_factory=set)  # beams
    cached_tokens: int = 0


class BeamGroups:
    """Replaces what beams have sampled by what their groups choose. Belongs to the engine's thread.

    The device finds the most likely tokens of each beam, as log-probabilities; a group chooses once
    all of its beams have theirs, in one step unless some were preempted.
    """

    def __init__(self, scheduler: Scheduler, constraints: Constraints) -> None:
        self._scheduler, self._constraints = scheduler, constraints
        self._searches: dict[int, _Search] = {}  # by request
        self._ids = np.empty(0, np.int64)

    def __bool__(self) -> bool:
        return bool(self._searches)

    def add(self, ids: Sequence[int], group: BeamGroup) -> None:
        """Add the beams of a request that was queued."""
        shape = group.width, group.num_candidates
        values, tokens = np.empty(shape, np.float32), np.empty(shape, np.int32)
        self._searches[ids[0] >> INDEX_BITS] = _Search(list(ids), group, values, tokens)
        self._index()

    def _index(self) -> None:
        ids = [each for search in self._searches.values() for each in search.ids]
        self._ids = np.array(sorted(ids), np.int64)

    def all_beams(self, ids: Iterable[int]) -> list[int]:
        """``ids``, and all beams of those that are one; their searches end."""
        found = dict.fromkeys(ids)
        for request in {each >> INDEX_BITS for each in found} & self._searches.keys():
            found.update(dict.fromkeys(self._searches.pop(request).ids))
            self._index()
        return [*found]

    def advance(
        self, outputs: StepOutputs, result: Result
    ) -> tuple[StepOutputs, list[StepOutput], list[int]]:
        """Take the candidates of a committed step, and hide what it says of beams.

        Returns the step's outputs without the candidates, the messages of searches that are over,
        and the sequences to end with them.
        """
        sampled = outputs.sampled
        is_beam = np.isin(result.ids, self._ids)
        rows = np.flatnonzero(is_beam)
        if not len(rows) or sampled is None or sampled.logprobs is None:
            return outputs, [], []
        logprobs = sampled.logprobs
        of_rows = logprobs.places // result.tokens.shape[1]
        entries = dict(zip(of_rows.tolist(), range(len(of_rows)), strict=True))
        messages: list[StepOutput] = []
        ended: list[int] = []
        for row in rows.tolist():
            sequence = int(result.ids[row])
            search = self._searches.get(sequence >> INDEX_BITS)
            if search is None:  # it has just ended
                continue
            if (finish := int(result.finish[row])) in SEQUENCE_ERRORS:
                messages.append(error_columns(search.ids, finish))
                ended += self.all_beams([sequence])
            elif result.num_tokens[row]:  # else the beam has been replaced since then
                search.cached_tokens = int(result.cached_tokens[row])
                self._take(search, sequence, logprobs, entries[row])
                if len(search.there) == search.group.width and not self._choose(search):
                    request, count = sequence >> INDEX_BITS, len(search.ids)
                    best, cached = search.group.best, search.cached_tokens
                    messages.append(beam_columns(request, count, best, cached))
                    ended += self.all_beams([sequence])
        result.tokens[rows] = -1
        result.num_tokens[rows] = 0
        result.finish[rows] = 0
        kept = np.flatnonzero(~is_beam[of_rows])
        others = logprobs.of(kept, logprobs.places[kept]) if len(kept) else None
        return replace(outputs, sampled=replace(sampled, logprobs=others)), messages, ended

    def _take(self, search: _Search, sequence: int, found: Logprobs, entry: int) -> None:
        beam = search.ids.index(sequence)
        count = search.values.shape[1]
        search.values[beam] = found.values[entry, :count]
        search.tokens[beam] = found.ids[entry, :count]
        search.there.add(beam)

    def _choose(self, search: _Search) -> bool:
        """Let the group choose; returns whether its beams go on."""
        search.there.clear()
        chosen = search.group.advance(search.values, search.tokens)
        if chosen is None:
            return False
        self._scheduler.reorder(search.ids, chosen.parents, chosen.tokens)
        self._constraints.reorder(search.ids, chosen.parents, chosen.tokens)
        return True

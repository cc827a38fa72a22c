# SPDX-License-Identifier: Apache-2.0
"""The beam searches of an engine, between its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.beam_group import BeamGroup, Hypothesis
from rtp_llm.engine.beams.continuations import Continuations, choose_continuations
from rtp_llm.engine.beams.top_tokens import TopHistory
from rtp_llm.engine.columns import beam_columns, error_columns
from rtp_llm.engine.messages import INDEX_BITS, SEQUENCE_ERRORS, RequestError, StepOutput
from rtp_llm.worker.heads.beam_table import BeamRows, BeamTable, SearchRows

if TYPE_CHECKING:
    from rtp_llm._runtime import Result, Scheduler
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.heads.beam_table import Selected
    from rtp_llm.worker.worker import StepOutputs

_NO_IDS = np.empty(0, np.int64)


@dataclass(eq=False)
class PreparedSearch:
    """The groups of a search that is to be added, in the order in which they choose.

    ``count``: how many of the best sequences are given. Each group chooses from ``k`` of the best
    continuations. ``top``: so many of the most likely tokens are given of each place.
    ``overlaps``: the device can choose alone.
    """

    groups: Sequence[BeamGroup]
    count: int
    k: int
    diversity_penalty: float
    stop_ids: NDArray[np.int32]
    top: int = 0
    overlaps: bool = False

    @property
    def candidates_of_beam(self) -> int:
        """As many others can a penalty put before one as tokens are chosen by earlier groups."""
        return self.k + sum(group.rows.width for group in self.groups[:-1])


@dataclass(eq=False)
class _Search:
    """A search, and what is left of it in the table."""

    prepared: PreparedSearch
    rows: SearchRows
    ids: dict[BeamRows, NDArray[np.int64]]  # of each group's sequences
    cached_tokens: int = -1

    @property
    def best(self) -> list[Hypothesis]:
        """The best sequences that have ended."""
        every = [each for group in self.prepared.groups for each in group.best()]
        return sorted(every, key=lambda each: -each.score)[: self.prepared.count]


@dataclass
class _Changes:
    """What the searches of a step ended with: ``messages``, and ``ended`` sequences."""

    messages: list[StepOutput] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


class BeamGroups:
    """Replaces what beams have sampled by what their groups choose. Belongs to the engine's thread.

    The device selects the best continuations of each group (see BeamTable); the groups of a
    search choose once all of its beams have sampled, in one step unless some were preempted.
    """

    def __init__(self, scheduler: Scheduler, constraints: Constraints, table: BeamTable) -> None:
        self._scheduler, self._constraints, self._table = scheduler, constraints, table
        self._searches: dict[int, _Search] = {}  # by request
        self._index()

    def __bool__(self) -> bool:
        return bool(self._searches)

    def add(self, first: int, prepared: PreparedSearch) -> None:
        """Add the beams of a request, sequences ``first`` and so on, before they get slots.

        Raises:
            RequestError: the request is there already.
        """
        request = first >> INDEX_BITS
        if request in self._searches:
            raise RequestError("invalid", f"request_id={request} is in use")
        groups, ids, next_id = [], {}, first
        for group in prepared.groups:
            ids[group.rows] = np.arange(next_id, next_id + group.rows.width)
            next_id += group.rows.width
            groups.append(group.rows)
        penalty, stop_ids = prepared.diversity_penalty, prepared.stop_ids
        own = range(first, next_id), groups, prepared.k, penalty, stop_ids, prepared.top
        rows = SearchRows(*own, overlaps=prepared.overlaps)
        self._searches[request] = _Search(prepared, rows, ids)
        self._table.add(rows)
        self._index()

    def remove(self, request: int) -> list[int]:
        """Forget a request; returns its sequences."""
        search = self._searches.pop(request)
        self._table.remove(search.rows)
        self._index()
        return [*search.rows.ids]

    def all_beams(self, ids: Iterable[int]) -> list[int]:
        """``ids``, and all beams of those that are one; their searches end."""
        found = dict.fromkeys(ids)
        for request in {each >> INDEX_BITS for each in found} & self._searches.keys():
            found.update(dict.fromkeys(self.remove(request)))
        return [*found]

    def _index(self) -> None:
        """Arrays of the beams and the groups in the order of the table."""
        searches = [*self._searches.values()]
        places = [(search, rows) for search in searches for rows in search.rows.groups]
        ids = np.concatenate([_NO_IDS, *(search.ids[rows] for search, rows in places)])
        self._beams = np.argsort(ids)
        self._ids = ids[self._beams]
        of_rows = {group.rows: group for each in searches for group in each.prepared.groups}
        self._groups = [(search, of_rows[rows]) for search, rows in places]
        counts = [len(search.rows.groups) for search in searches]
        self._search_of = np.repeat(np.arange(len(searches)), counts)
        stops = [search.rows.stop_ids for search, _ in places]
        self._stops = np.full((len(stops), max(map(len, stops), default=0)), -2, np.int32)
        for row, each in zip(self._stops, stops, strict=True):
            row[: len(each)] = each

    def advance(
        self, outputs: StepOutputs, result: Result
    ) -> tuple[StepOutputs, list[StepOutput], list[int]]:
        """Take the candidates of a committed step, and hide what it says of beams.

        Returns the step's outputs without the candidates, the messages of searches that are over,
        and the sequences to end with them.
        """
        sampled = outputs.sampled
        beams = self._beams_of(result.ids)
        rows = np.flatnonzero(beams >= 0)
        changes = _Changes()
        if not len(rows) or sampled is None:
            return outputs, [], []
        if result.finish[rows].any():
            self._end_failed(result, rows, changes)
            beams = self._beams_of(result.ids)
        # What is not there has been replaced since then.
        self._table.beams.there[beams[(beams >= 0) & (result.num_tokens > 0)]] = True
        if sampled.beams is not None and self._groups:
            self._choose(sampled.beams, result, changes)
        result.tokens[rows] = -1
        result.num_tokens[rows] = 0
        result.finish[rows] = 0
        outputs = replace(outputs, sampled=replace(sampled, beams=None))
        return outputs, changes.messages, changes.ended

    def _beams_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places in the table of sequences [R], -1: it is no beam."""
        if not len(self._ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._beams[at], -1)

    def _end_failed(self, result: Result, rows: NDArray[np.int64], changes: _Changes) -> None:
        for row in rows[np.isin(result.finish[rows], [*SEQUENCE_ERRORS])].tolist():
            sequence = int(result.ids[row])
            if sequence >> INDEX_BITS in self._searches:  # else it has just ended
                ended = self.remove(sequence >> INDEX_BITS)
                changes.messages.append(error_columns(ended, int(result.finish[row])))
                changes.ended += ended

    def _complete(self) -> NDArray[np.int64]:
        """The groups of searches whose beams have all sampled: groups of a search choose in one
        step, as the later ones count what the earlier ones choose."""
        there = self._table.beams.there
        if there.all():
            return np.arange(len(self._groups))
        waits = np.logical_or.reduceat(~there, self._table.starts[:-1])
        return np.flatnonzero(np.bincount(self._search_of, waits)[self._search_of] == 0)

    def _choose(self, selected: Selected, result: Result, changes: _Changes) -> None:
        """Let all groups that can choose do so."""
        complete = self._complete()
        if not len(complete):
            return
        groups = [self._groups[each] for each in complete.tolist()]
        places = {rows: at for at, rows in enumerate(selected.groups)}
        at = [places[group.rows] for _, group in groups]
        for (search, group), place in zip(groups, at, strict=True):
            if search.cached_tokens < 0:
                own = result.ids >> INDEX_BITS == search.rows.ids[0] >> INDEX_BITS
                search.cached_tokens = int(result.cached_tokens[own.argmax()])
            if group.top is not None:
                _take_top(group, group.top, selected, place)
        found = choose_continuations(
            [group for _, group in groups], selected, at, self._stops[complete]
        )
        self._table.choose(complete, found.scores)
        self._go_on(groups, found, changes)

    def _go_on(
        self,
        groups: Sequence[tuple[_Search, BeamGroup]],
        found: Continuations,
        changes: _Changes,
    ) -> None:
        """Let beams go on in the cache, and end those that do not."""
        going: list[int] = []
        over = []
        for number, (search, group) in enumerate(groups):
            if found.counts[number] and group.go_on(*found.of(number)):
                going.append(number)
            else:
                over.append((search, group))
        if going:
            self._reorder(groups, going, found)
        for search, group in over:
            self._end(search, group, changes)

    def _reorder(
        self, groups: Sequence[tuple[_Search, BeamGroup]], going: list[int], found: Continuations
    ) -> None:
        widths = [groups[each][1].rows.width for each in going]
        ids = [groups[each][0].ids[groups[each][1].rows] for each in going]
        parents, tokens = found.parents, found.tokens
        if len(going) < len(groups):
            parents, tokens, _ = map(np.concatenate, zip(*map(found.of, going), strict=True))
        self._scheduler.reorder(np.concatenate(ids), parents, tokens, widths)
        for number, own in zip(going, ids, strict=True):
            self._constraints.reorder(own, *found.of(number)[:2])

    def _end(self, search: _Search, group: BeamGroup, changes: _Changes) -> None:
        """End a group that does not go on, or the whole search if it was the last one."""
        if len(search.rows.groups) > 1:  # the other groups go on
            search.rows.groups.remove(group.rows)
            self._table.refresh()
            self._index()
            changes.ended += search.ids[group.rows].tolist()
        else:
            best, cached = search.best, search.cached_tokens
            request = search.rows.ids[0] >> INDEX_BITS
            count = len(search.rows.ids)
            changes.messages.append(beam_columns(request, count, best, cached))
            changes.ended += self.remove(request)


def _take_top(group: BeamGroup, top: TopHistory, selected: Selected, place: int) -> None:
    """Give a group, number ``place`` of those selected for, the most likely tokens of its beams."""
    assert selected.top_values is not None and selected.top_ids is not None
    first = sum(rows.width for rows in selected.groups[:place])
    own = slice(first, first + group.rows.width)
    top.take(selected.top_values[own], selected.top_ids[own])

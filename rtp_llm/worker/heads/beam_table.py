# SPDX-License-Identifier: Apache-2.0
"""The beams of all searches, and the selection of their continuations on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.heads.beam_choice import BeamChoice
from rtp_llm.worker.inputs.kept_upload import KeptUpload

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.sampled_tokens import SampledTokens


class BeamRows:
    """What is known of W beams, [W] each; of a group that chooses together, or of all beams.

    ``slots`` int32; ``scores`` float32, the sums so far, -inf: there is no such beam; ``part`` and
    ``row`` int32, which of the table's parts has their candidates in which row, part -1: they have
    none yet; ``there`` bool, whether the engine knows that they have sampled. A group's are views
    of the table's, from the beam ``start`` on.
    """

    def __init__(self, width: int) -> None:
        """At first all beams are one."""
        self.width, self.start = width, 0
        self.slots = np.full(width, -1, np.int32)
        self.scores = np.full(width, -np.inf, np.float32)
        self.scores[:1] = 0
        self.part = np.full(width, -1, np.int32)
        self.row = np.zeros(width, np.int32)
        self.there = np.zeros(width, np.bool_)

    def move(self, whole: BeamRows, start: int) -> None:
        """Make these beams the ones from ``start`` on of ``whole``."""
        self.start = start
        for name in ("slots", "scores", "part", "row", "there"):
            column = getattr(whole, name)[start : start + self.width]
            column[:] = getattr(self, name)
            setattr(self, name, column)


@dataclass(eq=False)
class SearchRows:
    """A search in the table: its sequences are ``ids``, in the order of its groups' beams.

    A group chooses from ``k`` candidates. ``stop_ids`` int32 [N] end a sequence. ``top``: so many
    of the most likely tokens of each beam are read, whatever is chosen. ``overlaps``: the device
    chooses, too, so that the next step need not wait for the host.
    """

    ids: range
    groups: list[BeamRows]
    k: int
    diversity_penalty: float
    stop_ids: NDArray[np.int32]
    top: int = 0
    overlaps: bool = False


@dataclass(frozen=True)
class Selected:
    """The best continuations of G ``groups``, arrays [G, k], the best one first, as `select_beams`
    finds them. They mean something for groups whose beams all had candidates.

    ``top_values`` and ``top_ids`` [B, n]: the most likely tokens of all beams of these groups, if a
    search asks for them.
    """

    groups: Sequence[BeamRows]
    parents: NDArray[np.int32]
    tokens: NDArray[np.int32]
    totals: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    top_values: NDArray[np.float32] | None = None
    top_ids: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Selection:
    """A selection on the device: ``arrays`` are what `select_beams` returns for ``groups``, and the
    most likely tokens of Selected. ``is_beam`` bool [L]: which of the step's rows with
    log-probabilities are beams."""

    groups: Sequence[BeamRows]
    is_beam: NDArray[np.bool_]
    arrays: tuple[Tensor, ...]


class BeamTable:
    """Belongs to the engine's thread: the engine adds searches and writes what they have chosen;
    the sampler of the same process selects from the candidates of each step.

    All beams of a group usually get their candidates in one step. Where some were preempted, those
    of the others are kept.
    """

    def __init__(
        self, num_slots: int, device: Device, sampled: SampledTokens | None = None
    ) -> None:
        self._device = device
        self._kept = KeptUpload(device)
        self.choice = BeamChoice(num_slots, device, sampled)
        self._beam_of_slot = np.full(num_slots, -1, np.int32)
        self._searches: dict[int, SearchRows] = {}  # by the first id
        self._parts: list[tuple[Tensor, Tensor]] = []  # candidates: values and ids
        self.groups: list[BeamRows] = []
        self.refresh()

    def __bool__(self) -> bool:
        return bool(self._searches)

    def add(self, search: SearchRows) -> None:
        """Add a search, before its sequences have slots."""
        self._searches[search.ids[0]] = search
        self.refresh()

    def remove(self, search: SearchRows) -> None:
        """Remove a search that has ended."""
        del self._searches[search.ids[0]]
        self.refresh()

    def refresh(self) -> None:
        """Arrange the beams anew, after a change of the searches or of their groups."""
        searches = [*self._searches.values()]
        # A list that a selection names stays as it is.
        self.groups = [group for search in searches for group in search.groups]
        self.starts = np.cumsum([0, *(group.width for group in self.groups)], dtype=np.int32)
        self.beams = BeamRows(int(self.starts[-1]))
        for group, start in zip(self.groups, self.starts.tolist(), strict=False):
            group.move(self.beams, start)
        self._index_slots()
        self._k = max((search.k for search in searches), default=0)
        self._top = max((search.top for search in searches), default=0)
        stops = [search.stop_ids for search in searches]
        starts, groups, penalties, stop_ids, ends = self._device.upload_all(
            self.starts,
            np.cumsum([0, *(len(search.groups) for search in searches)], dtype=np.int32),
            np.array([search.diversity_penalty for search in searches], np.float32),
            np.concatenate([np.empty(0, np.int32), *stops]),
            np.cumsum([0, *map(len, stops)], dtype=np.int32),
        )
        self._constant = starts, groups, penalties, stop_ids, ends
        of_group = [search for search in searches for _ in search.groups]
        self.choice.arrange(
            self.groups,
            [search.overlaps for search in of_group],
            self.starts,
            self.beams.scores,
        )

    def choose(self, groups: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """The numbered ``groups`` go on, before they sample, with ``scores`` of their beams, one
        group after the other; -inf: there is no such beam."""
        own: NDArray[np.bool_] | slice = slice(None)
        if len(groups) < len(self.groups):
            chooses = np.zeros(len(self.groups), np.bool_)
            chooses[groups] = True
            own = np.repeat(chooses, np.diff(self.starts))
        beams = self.beams
        beams.scores[own], beams.part[own], beams.there[own] = scores, -1, False

    def overlaps(self, first: int) -> bool:
        """Whether the search whose first sequence is ``first`` overlaps."""
        return self._searches[first].overlaps

    def assign(self, ids: Sequence[int], slots: Sequence[int]) -> None:
        """Note the slots of new sequences, if they are those of a search."""
        search = self._searches.get(ids[0])
        if search is not None:
            start = search.groups[0].start
            self.beams.slots[start : start + len(slots)] = slots
            self._index_slots()

    def _index_slots(self) -> None:
        self._beam_of_slot.fill(-1)
        placed = np.flatnonzero(self.beams.slots >= 0)
        self._beam_of_slot[self.beams.slots[placed]] = placed

    def select(
        self, rows: NDArray[np.int64], slots: NDArray[np.int32], values: Tensor, ids: Tensor
    ) -> Selection | None:
        """Select from the candidates of the beams among ``slots`` int32 [L], and from those that
        are kept; None if none is a beam. ``rows`` int64 [L] of the step; ``values`` float32 [L, C],
        ``ids`` int32 [L, C]: see `top_logprobs`. Never waits."""
        beams = self._beam_of_slot[slots]
        is_beam = beams >= 0
        found = np.flatnonzero(is_beam)
        if not len(found):
            return None
        if len(found) == self.beams.width:  # the usual case: nothing was kept
            self._parts.clear()
            self.beams.part.fill(0)
        else:
            self.beams.part[beams[found]] = len(self._parts)
        self.beams.row[beams[found]] = found
        self._parts.append((values, ids))
        choosing: tuple[NDArray[np.int32], ...] = ()
        if self.choice:
            has_candidates = self.beams.part >= 0
            choosing = self.choice.prepare(has_candidates, beams[found], slots[found], rows[found])
        places, values, ids = self._candidates()
        at, *uploaded = self._kept.upload(places, *choosing)
        scores = self.choice.scores(self.beams.scores)
        if self.choice:
            self.beams.part[self.choice.of_complete] = -1  # they have chosen
        selected = ops.select_beams(values, ids, at, scores, *self._constant, self._k)
        arrays: tuple[Tensor, ...] = selected
        if self.choice:
            widths, token_rows = uploaded
            starts, groups, _, stop_ids, ends = self._constant
            self.choice.choose(selected, widths, token_rows, (starts, groups, stop_ids, ends))
        if self._top:
            index = at.clamp(min=0)
            tops = (each[:, : self._top].index_select(0, index) for each in (values, ids))
            arrays = *arrays, *tops
        return Selection(self.groups, is_beam, arrays)

    def _candidates(self) -> tuple[NDArray[np.int32], Tensor, Tensor]:
        """The row of each beam, -1 for none, among candidates [R, C]."""
        part, row = self.beams.part, self.beams.row
        if len(self._parts) > 1:
            used = np.unique(part[part >= 0])
            self._parts = [self._parts[each] for each in used.tolist()]
            part[part >= 0] = np.searchsorted(used, part[part >= 0])
        if len(self._parts) == 1:
            values, ids = self._parts[0]
            rows = np.where(part < 0, np.int32(-1), row)
            return rows, values.contiguous(), ids.contiguous()
        most = max(values.shape[1] for values, _ in self._parts)
        padded = [
            (
                torch.nn.functional.pad(values, missing, value=-torch.inf),
                torch.nn.functional.pad(ids, missing),
            )
            for values, ids in self._parts
            for missing in [(0, most - values.shape[1])]
        ]
        firsts = np.cumsum([0, *(len(values) for values, _ in padded)])
        rows = np.where(part < 0, -1, firsts[part] + row).astype(np.int32)
        values, ids = (torch.cat(each) for each in zip(*padded, strict=True))
        return rows, values, ids

# SPDX-License-Identifier: Apache-2.0
"""What the device chooses for beams whose steps overlap; the host finds the same a step later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.inputs.beam_order import BeamOrder

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class BeamChoice:
    """Chooses for groups that overlap, all of them as `BeamGroup.advance` does without stop
    strings; arrays are in the order of the BeamTable at the last selection."""

    def __init__(self, num_slots: int, device: Device, sampled: SampledTokens | None) -> None:
        """``sampled``: where the next step finds the tokens; None: no steps overlap."""
        self._device, self._sampled = device, sampled
        self._beam_of_slot = np.full(num_slots, -1, np.int32)
        self._overlaps = np.empty(0, np.bool_)  # of groups
        self._places: dict[object, int] = {}  # of the groups' first beams
        # Room for all beams, and a last place for what nobody chooses. Graphs read the parents.
        self._room = num_slots + 1
        self._scores = self._zeros(torch.float32)
        self._parents = self._zeros(torch.int64)

    def __bool__(self) -> bool:
        """Whether a group overlaps."""
        return bool(self._overlaps.any())

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._room, dtype=dtype, device=self._device.torch_device)

    def arrange(
        self,
        groups: Sequence[object],
        overlaps: Sequence[bool],
        starts: NDArray[np.int32],
        scores: NDArray[np.float32],
        stop_ids: Sequence[NDArray[np.int32]],
    ) -> None:
        """Arrange the beams anew: ``groups`` begin at ``starts`` [G + 1], the host knows ``scores``
        [B] of beams; ``stop_ids`` of each group end a sequence."""
        places = dict(zip(groups, starts.tolist(), strict=False))
        before, self._places = self._places, places
        self._overlaps = np.array(overlaps, np.bool_)
        self._widths = np.diff(starts)
        if not self:
            return
        old = np.full(self._room, -1, np.int64)
        for group, overlap, start, width in zip(
            groups, overlaps, starts.tolist(), self._widths.tolist(), strict=False
        ):
            if overlap and group in before:
                old[start : start + width] = before[group] + np.arange(width)
        most = max(map(len, stop_ids), default=0)
        stops = np.full((len(groups), max(1, most)), -2, np.int32)
        for row, ids in zip(stops, stop_ids, strict=True):
            row[: len(ids)] = ids
        upload = self._device.upload_all
        index, known, self._stops, self._starts, self._is_here = upload(
            old,
            np.pad(scores, (0, self._room - len(scores))),
            stops,
            starts[:-1, None].astype(np.int64),
            np.repeat(self._overlaps, self._widths),
        )
        kept = self._scores.index_select(0, index.clamp(min=0))
        self._scores = torch.where(index < 0, known, kept)

    def scores(self, known: Tensor) -> Tensor:
        """The sums of all beams, float32 [B]: of others than these the host's, ``known``."""
        here = self._scores[: len(known)]
        return here if self._overlaps.all() else torch.where(self._is_here, here, known)

    def prepare(
        self,
        has_candidates: NDArray[np.bool_],
        beams: NDArray[np.int32],
        slots: NDArray[np.int32],
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Note which groups choose now: those whose beams all have candidates.

        ``beams``, ``slots`` and ``rows`` of the step's beams; ``has_candidates`` [B] of all.
        Returns what `choose` takes, to be uploaded: how many beams each group goes on with [G, 1],
        and which beams get their token in which of the step's rows.
        """
        complete = self._overlaps & np.logical_and.reduceat(
            has_candidates, np.cumsum(self._widths) - self._widths
        )
        self.of_complete = np.repeat(complete, self._widths)
        here = self.of_complete[beams]
        self._beam_of_slot.fill(-1)
        self._beam_of_slot[slots[here]] = beams[here]
        widths = np.where(complete, self._widths, 0).astype(np.int64)[:, None]
        return widths, beams[here].astype(np.int64), rows[here].astype(np.int64)

    def choose(
        self, selected: tuple[Tensor, ...], widths: Tensor, beams: Tensor, rows: Tensor
    ) -> None:
        """Go on with the best candidates that do not end a sequence; ``selected``: see
        `select_beams`."""
        assert self._sampled is not None
        parents, tokens, totals, _ = selected
        goes = (tokens[:, :, None] != self._stops[:, None, :]).all(2)
        place = goes.cumsum(1)
        goes &= place <= widths
        places = torch.where(goes, place + (self._starts - 1), self._room - 1).view(-1)
        self._scores.scatter_(0, places, totals.view(-1))
        self._parents.scatter_(0, places, (parents.clamp(min=0) + self._starts).view(-1))
        chosen = tokens.new_empty(self._room).scatter_(0, places, tokens.view(-1))
        self._sampled.replace(rows, chosen.index_select(0, beams))

    def order(self, plan: StepPlan, block_size: int) -> BeamOrder | None:
        """How to order the block tables of a step, some of whose tokens the last choice names."""
        beams = self._beam_of_slot[plan.row_slots]
        named = plan.token_ids[plan.logit_rows] < 0
        rows = np.flatnonzero((beams >= 0) & named)
        if not len(rows):
            return None
        rows = rows[np.argsort(beams[rows])]
        numbers = np.empty((4, len(rows)), np.int32)
        numbers[0] = plan.logit_rows[rows]  # those with one token come first, in their order
        numbers[1] = beams[rows]
        np.divmod(plan.positions[numbers[0]], block_size, out=(numbers[2], numbers[3]))
        return BeamOrder(numbers, self._parents)

# SPDX-License-Identifier: Apache-2.0
"""What the device chooses for beams whose steps overlap; the host finds the same a step later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.inputs.beam_order import BeamOrder
from rtp_llm.worker.inputs.kept_upload import KeptUpload

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class BeamChoice:
    """Chooses for groups that overlap, all of them as `BeamGroups.advance` does without stop
    strings; arrays are in the order of the BeamTable at the last selection."""

    def __init__(self, num_slots: int, device: Device, sampled: SampledTokens | None) -> None:
        """``sampled``: where the next step finds the tokens; None: no steps overlap."""
        self._device, self._sampled = device, sampled
        self._kept = KeptUpload(device)
        self._beam_of_slot = np.full(num_slots, -1, np.int32)
        self._overlaps = np.empty(0, np.bool_)  # of groups
        self._places: dict[object, int] = {}  # of the groups' first beams
        self._scores = self._zeros(num_slots, torch.float32)
        self._parents = self._zeros(num_slots, torch.int32)
        self._num_beams = 0  # at the last selection
        self._chosen_starts: Tensor | None = None

    def __bool__(self) -> bool:
        """Whether a group overlaps."""
        return bool(self._places)

    def _zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device.torch_device)

    def arrange(
        self,
        groups: Sequence[object],
        overlaps: Sequence[bool],
        starts: NDArray[np.int32],
        scores: NDArray[np.float32],
    ) -> None:
        """Arrange the beams anew: ``groups`` begin at ``starts`` [G + 1], the host knows ``scores``
        [B] of beams."""
        self._overlaps = np.array(overlaps, np.bool_)
        self._widths, self._starts = np.diff(starts), starts[:-1]
        before, self._places = self._places, {}
        old = np.full(len(scores), -1, np.int32)
        places = zip(groups, overlaps, starts.tolist(), self._widths.tolist(), strict=False)
        for group, overlap, start, width in places:
            if overlap:
                self._places[group] = start
                if group in before:
                    old[start : start + width] = before[group] + np.arange(width)
        if not self:
            return
        index, known, self._is_here = self._device.upload_all(
            old, scores, np.repeat(self._overlaps, self._widths)
        )
        kept = self._scores.index_select(0, index.clamp(min=0))
        self._scores[: len(scores)] = torch.where(index < 0, known, kept)

    def scores(self, known: NDArray[np.float32]) -> Tensor:
        """The sums of all beams, float32 [B]: of others than these the host's, ``known``."""
        here = self._scores[: len(known)]
        if self and self._overlaps.all():
            return here
        uploaded = self._device.upload(known)
        return torch.where(self._is_here, here, uploaded) if self else uploaded

    def prepare(
        self,
        has_candidates: NDArray[np.bool_],
        beams: NDArray[np.int32],
        slots: NDArray[np.int32],
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Note which groups choose now: those whose beams all have candidates.

        ``beams``, ``slots`` and ``rows`` of the step's beams; ``has_candidates`` [B] of all.
        Returns what `choose` takes, to be uploaded: with how many beams each group goes on [G], and
        the row of the step that is to have each beam's token [B].
        """
        complete = self._overlaps & np.logical_and.reduceat(has_candidates, self._starts)
        self.of_complete = np.repeat(complete, self._widths)
        self._num_beams = len(has_candidates)
        self._beam_of_slot.fill(-1)
        self._beam_of_slot[slots] = np.where(self.of_complete[beams], beams, -1)
        token_rows = np.full(self._num_beams, -1, np.int32)
        token_rows[beams] = rows
        return np.where(complete, self._widths, 0).astype(np.int32), token_rows

    def choose(
        self,
        selected: tuple[Tensor, Tensor],
        widths: Tensor,
        rows: Tensor,
        constant: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        """Go on with the best candidates that do not end a sequence; ``selected`` is the result of
        `select_beams`, ``constant`` is what both operators are given of groups and stop ids."""
        assert self._sampled is not None
        self._chosen_starts = constant[0]
        row_tokens = self._sampled.tokens(self._sampled.max_rows)
        ops.choose_beams(
            *selected,
            widths,
            rows,
            *constant,
            self._scores,
            self._parents,
            row_tokens,
        )

    def order(self, plan: StepPlan) -> BeamOrder | None:
        """How to order the block tables of a step, some of whose tokens the last choice names."""
        beams = self._beam_of_slot[plan.row_slots]
        named = plan.token_ids[plan.logit_rows] < 0
        rows = np.flatnonzero((beams >= 0) & named)
        if not len(rows):
            return None
        assert self._chosen_starts is not None
        sequences = np.full(self._num_beams, -1, np.int32)
        sequences[beams[rows]] = plan.logit_rows[rows]
        (uploaded,) = self._kept.upload(sequences)
        return BeamOrder(uploaded, self._parents, self._chosen_starts)

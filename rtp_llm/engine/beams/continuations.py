# SPDX-License-Identifier: Apache-2.0
"""How groups of beams go on, those of all groups of a step in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.beam_group import BeamGroup
from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm.worker.heads.beam_table import Selected


@dataclass(frozen=True)
class Continuations:
    """Groups of beams, arrays [N] of one group after the other: the beams go on from ``parents``,
    indexes of beams of their group, with ``tokens``, and ``scores`` are their sums.

    ``counts``: so many beams of each group go on, the others of its width are copies of the last
    one that count for nothing, with a score of -inf. Group g begins at ``starts[g]``.
    """

    parents: NDArray[np.int32]
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    scores: NDArray[np.float32]
    counts: list[int]
    starts: list[int]

    def of(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Parents, tokens and log-probabilities of a group."""
        own = slice(self.starts[group], self.starts[group + 1])
        return self.parents[own], self.tokens[own], self.logprobs[own]


def choose_continuations(
    groups: Sequence[BeamGroup],
    selected: Selected,
    places: Sequence[int],
    stop_ids: NDArray[np.int32],
) -> Continuations:
    """Let groups choose among their candidates, number ``places`` of those selected for.

    A sequence among the best candidates ends if its token is one of the group's ``stop_ids``
    [G, N], if it completes a stop string or is as long as it may be; the best ones that do not end
    go on. Ended ones go to their groups.
    """
    widths = [group.rows.width for group in groups]
    next_widths = [group.next_width for group in groups]
    at_end = [group.is_at_end for group in groups]
    parents, tokens, logprobs, scores, counts, ended = load_runtime().choose_continuations(
        selected.parents,
        selected.tokens,
        selected.totals,
        selected.logprobs,
        [*zip(places, widths, next_widths, at_end, strict=True)],
        stop_ids,
        _text_stops(groups, selected, places),
    )
    for group, *sequence in ended:
        groups[group].end(*sequence)
    starts = [*accumulate(widths, initial=0)]
    return Continuations(parents, tokens, logprobs, scores, counts, starts)


def _text_stops(
    groups: Sequence[BeamGroup], selected: Selected, places: Sequence[int]
) -> NDArray[np.bool_] | None:
    """Which candidates [G, k] complete a stop string; None: no group has any."""
    if not any(group.stop_texts for group in groups):
        return None
    stops = np.zeros((len(groups), selected.tokens.shape[1]), np.bool_)
    for row, (group, place) in enumerate(zip(groups, places, strict=True)):
        if group.stop_texts is not None:
            there = selected.tokens[place] >= 0
            parents, tokens = selected.parents[place, there], selected.tokens[place, there]
            stops[row, there] = group.stop_texts.found(parents, tokens)
    return stops

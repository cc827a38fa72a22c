# SPDX-License-Identifier: Apache-2.0
"""Collects which rows of a step get which mask, then fills all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.grammar.library import MaskTask

if TYPE_CHECKING:
    from rtp_llm.worker.grammar.library import GrammarLibrary, Matcher


class TokenMasks(NamedTuple):
    """As `apply_token_bitmask` takes them: masks int32 [P, ceil(V / 32)], rows int32 [P]."""

    masks: NDArray[np.int32]
    rows: NDArray[np.int32]


@dataclass
class MaskWriter:
    """Collects the masks of a step; rows without one are unconstrained."""

    rows: list[int] = field(default_factory=list)
    tasks: list[MaskTask] = field(default_factory=list)
    _allowed: list[tuple[int, int]] = field(default_factory=list)  # (place, token)
    _only: list[int] = field(default_factory=list)  # places
    _without: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def only(self, row: int, token: int) -> None:
        """Allow only ``token`` in ``row``."""
        self._only.append(len(self.rows))
        self._allowed.append((len(self.rows), token))
        self.rows.append(row)

    def without(self, row: int, tokens: Sequence[int]) -> None:
        """Allow everything except ``tokens`` in ``row``."""
        self._without.append((len(self.rows), tokens))
        self.rows.append(row)

    def follow(
        self, matcher: Matcher, row: int, drafts: Sequence[int], also: int | None = None
    ) -> None:
        """Allow in ``row`` what ``matcher`` accepts now, and in the rows after it what it accepts
        after each of ``drafts``. ``also`` is one more token to allow in the first row."""
        if also is not None:
            self._allowed.append((len(self.rows), also))
        self.tasks.append(MaskTask(matcher, len(self.rows), drafts))
        self.rows.append(row)
        if drafts:
            self.rows.extend(range(row + 1, row + len(drafts) + 1))

    def fill(self, masks: NDArray[np.int32], library: GrammarLibrary | None) -> None:
        """Write masks [P, ceil(V / 32)] of ``rows`` [P]."""
        for place, tokens in self._without:
            masks[place] = -1
            for token in tokens:
                masks[place, token >> 5] &= ~_bit(token)
        for place in self._only:
            masks[place] = 0
        if len(self.tasks) < len(self.rows):
            for task in self.tasks:
                if task.drafts:  # nothing is written after a forbidden one
                    masks[task.row : task.row + len(task.drafts) + 1] = -1
        if library is not None:
            library.fill(self.tasks, masks)
        self._allow(masks, self._allowed)

    @staticmethod
    def _allow(masks: NDArray[np.int32], tokens: Iterable[tuple[int, int]]) -> None:
        for place, token in tokens:
            masks[place, token >> 5] |= _bit(token)


def _bit(token: int) -> np.int32:
    return np.uint32(1 << (token & 31)).view(np.int32)

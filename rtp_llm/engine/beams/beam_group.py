# SPDX-License-Identifier: Apache-2.0
"""The beams of one request: their scores, and the sequences that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.stop_texts import StopTexts
from rtp_llm.request.beam_search import BeamSearch

# The sum of log-probabilities of beams that are not there.
_NOTHING = np.float32(-np.inf)


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended: ``tokens`` int32 [T] with their ``logprobs`` float32 [T].
    ``stopped``: by its last token, otherwise by its length."""

    score: float
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stopped: bool


class Chosen(NamedTuple):
    """The beams go on from ``parents`` [W], indexes of beams, with ``tokens`` [W]."""

    parents: list[int]
    tokens: list[int]


class BeamGroup:
    """Chooses the continuations of ``width`` beams, like transformers' beam search."""

    def __init__(
        self,
        width: int,
        max_tokens: int,
        stop_ids: Sequence[int],
        search: BeamSearch,
        stop_texts: StopTexts | None = None,
    ) -> None:
        """``stop_ids`` and ``stop_texts`` end a sequence, and so does its length of
        ``max_tokens``."""
        self._stop_texts = stop_texts
        self.width, self._max_tokens, self._search = width, max_tokens, search
        self._stop_ids = np.array(sorted(set(stop_ids)), np.int32)
        self._scores = np.full(width, _NOTHING, np.float32)
        self._scores[0] = 0  # at first all beams are one
        self._tokens = np.empty((width, 0), np.int32)
        self._logprobs = np.empty((width, 0), np.float32)
        self.ended: list[Hypothesis] = []  # the best ones, the best first

    @property
    def best(self) -> list[Hypothesis]:
        """What the search gives."""
        return self.ended[: self._search.num_return_sequences]

    @property
    def num_candidates(self) -> int:
        """Continuations of each beam that may matter: so many that there is one for each beam even
        if all stop ids are among them."""
        return max(2, 1 + len(self._stop_ids)) * self.width

    def advance(self, values: NDArray[np.float32], ids: NDArray[np.int32]) -> Chosen | None:
        """Choose among the most likely next tokens of each beam, by their log-probabilities.

        ``values`` and ``ids`` [W, K], K = num_candidates, the best first. None: the search is over.
        """
        totals = (self._scores[:, None] + values).ravel()
        best = np.argsort(-totals, kind="stable")[: self.num_candidates]
        best = best[totals[best] > _NOTHING]
        parents, totals = best // values.shape[1], totals[best]
        tokens, logprobs = ids.ravel()[best], values.ravel()[best]
        length = self._tokens.shape[1] + 1
        stops = np.isin(tokens, self._stop_ids)
        if self._stop_texts is not None:
            stops |= self._stop_texts.found(parents, tokens)
        ends = stops if length < self._max_tokens else np.ones_like(stops)

        def sequences(chosen: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            before = parents[chosen]
            return (
                np.column_stack((self._tokens[before], tokens[chosen])),
                np.column_stack((self._logprobs[before], logprobs[chosen])),
            )

        ended = np.flatnonzero(ends[: self.width])
        scores = totals[ended] / np.float32(length**self._search.length_penalty)
        self._end(scores, *sequences(ended), stops[ended])
        going = np.flatnonzero(~ends)[: self.width]
        if not len(going):
            return None
        missing = self.width - len(going)
        going = np.pad(going, (0, missing), mode="edge")  # copies that count for nothing
        self._tokens, self._logprobs = sequences(going)
        self._scores = totals[going]
        self._scores[self.width - missing :] = _NOTHING
        if self._stop_texts is not None:
            self._stop_texts.follow(parents[going], tokens[going])
        if not self._can_improve(length):
            return None
        return Chosen(parents[going].tolist(), tokens[going].tolist())

    def _end(
        self,
        scores: NDArray[np.float32],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        stopped: NDArray[np.bool_],
    ) -> None:
        for each in zip(scores.tolist(), tokens, logprobs, stopped.tolist(), strict=True):
            self.ended.append(Hypothesis(*each))
        self.ended.sort(key=lambda each: -each.score)
        del self.ended[self.width :]

    def _can_improve(self, length: int) -> bool:
        """Whether a beam may still become one of the best that have ended."""
        if len(self.ended) < self.width:
            return True
        stopping, penalty = self._search.early_stopping, self._search.length_penalty
        if stopping is True:
            return False
        if stopping == "never" and penalty > 0:
            length = self._max_tokens
        best = self._scores[0] / np.float32(length**penalty)
        return bool(best > self.ended[-1].score)

# SPDX-License-Identifier: Apache-2.0
"""A group of beams that choose together: their tokens, and the sequences that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.beam_history import BeamHistory
from rtp_llm.engine.beams.stop_texts import StopTexts
from rtp_llm.engine.beams.top_tokens import TopHistory, TopTokens
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.worker.heads.beam_table import BeamRows


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended: ``tokens`` int32 [T] with their ``logprobs`` float32 [T].
    ``stopped``: by its last token, otherwise by its length. ``top``: the most likely tokens in the
    places of these, if the request asks for them."""

    score: float
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stopped: bool
    top: TopTokens | None = None


@dataclass(frozen=True)
class _Ended:
    """A sequence that has ended after ``length`` tokens: beam ``parent`` and its last token."""

    score: float
    length: int
    parent: int
    token: int
    logprob: float
    stopped: bool
    top: TopTokens | None


class BeamGroup:
    """Keeps what its beams have chosen and which sequences have ended, like transformers' beam
    search. `BeamGroups` takes its steps, together with those of other groups."""

    def __init__(
        self,
        widths: Sequence[int],
        max_tokens: int,
        stop_ids: NDArray[np.int32],
        search: BeamSearch,
        stop_texts: StopTexts | None = None,
        top: int = 0,
    ) -> None:
        """``widths``: the number of beams after each step; the last one holds for the rest. The
        last one of max_tokens steps is how many ended sequences are kept. ``stop_ids`` and
        ``stop_texts`` end a sequence, and so does its length of ``max_tokens``."""
        self.stop_texts = stop_texts
        self.top = TopHistory(max(widths[:max_tokens]), top) if top else None
        self._widths, self._max_tokens, self._search = widths[:max_tokens], max_tokens, search
        self.rows = BeamRows(max(self._widths))
        self.num_candidates = _num_candidates(self._widths, len(stop_ids))
        self._history = BeamHistory()
        self._ended: list[_Ended] = []  # the best ones, the best first

    @property
    def next_width(self) -> int:
        """The number of beams after the next step."""
        return self._widths[min(self._history.length + 1, len(self._widths)) - 1]

    @property
    def is_at_end(self) -> bool:
        """Whether the next step is the last one."""
        return self._history.length + 1 >= self._max_tokens

    def end(self, parent: int, token: int, total: float, logprob: float, stopped: bool) -> None:
        """A sequence ends with the next step: beam ``parent`` and its ``token``; ``total`` is the
        sum of its log-probabilities."""
        length = self._history.length + 1
        top = None if self.top is None else self.top.of(parent)
        score = self._score(total, length)
        self._ended.append(_Ended(score, length, parent, token, logprob, stopped, top))
        self._ended.sort(key=lambda each: -each.score)
        del self._ended[self._widths[-1] :]

    def go_on(
        self,
        parents: NDArray[np.int32],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
    ) -> bool:
        """The beams go on from ``parents`` [W] with ``tokens`` [W], and `rows` has their scores.
        Returns whether one may still become one of the best; otherwise the search is over."""
        self._history.add(parents, tokens, logprobs)
        if self.stop_texts is not None:
            self.stop_texts.follow(parents, tokens)
        if self.top is not None:
            self.top.follow(parents)
        return self._can_improve()

    def _score(self, total: float, length: int) -> float:
        with np.errstate(over="ignore", divide="ignore"):
            return float(np.float64(total) / np.float64(length) ** self._search.length_penalty)

    def _can_improve(self) -> bool:
        """Whether a beam may still become one of the best that have ended."""
        if len(self._ended) < self._widths[-1]:
            return True
        stopping = self._search.early_stopping
        if stopping is True:
            return False
        at_the_end = stopping == "never" and self._search.length_penalty > 0
        length = self._max_tokens if at_the_end else self._history.length
        return self._score(self.rows.scores[0], length) > self._ended[-1].score

    def best(self) -> list[Hypothesis]:
        """The best sequences that have ended, the best one first."""
        before = self._history.of([(each.parent, each.length - 1) for each in self._ended])
        return [
            Hypothesis(
                each.score,
                np.append(tokens, np.int32(each.token)),
                np.append(logprobs, np.float32(each.logprob)),
                each.stopped,
                each.top,
            )
            for each, (tokens, logprobs) in zip(self._ended, before, strict=True)
        ]


def _num_candidates(widths: Sequence[int], stops: int) -> int:
    """Continuations that may matter: so many that there is one for each beam even if all others
    end a sequence."""
    steps = pairwise((1, *widths, widths[-1]))
    return max(max(2 * width, width + stops * beams) for beams, width in steps)

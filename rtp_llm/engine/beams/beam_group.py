# SPDX-License-Identifier: Apache-2.0
"""A group of beams that choose together: their tokens, and the sequences that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.beams.stop_texts import StopTexts
from rtp_llm.engine.beams.top_tokens import TopHistory, TopTokens
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.worker.heads.beam_table import BeamRows

_ROOM = 64  # tokens


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


class Candidates(NamedTuple):
    """The best continuations of a group's beams, [k or fewer], the best one first: see
    `select_beams`. ``stops`` bool: tokens that end a sequence."""

    parents: NDArray[np.int32]
    tokens: NDArray[np.int32]
    totals: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    stops: NDArray[np.bool_]


class Chosen(NamedTuple):
    """Beams go on from ``parents`` [W], indexes of beams, with ``tokens`` [W]."""

    parents: list[int]
    tokens: list[int]


class BeamGroup:
    """Chooses the continuations of beams, like transformers' beam search."""

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
        self._stop_texts = stop_texts
        self.top = TopHistory(max(widths[:max_tokens]), top) if top else None
        self._widths, self._max_tokens, self._search = widths[:max_tokens], max_tokens, search
        self.rows = BeamRows(max(self._widths))
        self.num_candidates = _num_candidates(self._widths, len(stop_ids))
        self._first = np.arange(self.rows.width)
        self._length = 0
        self._tokens = np.empty((self.rows.width, _ROOM), np.int32)
        self._logprobs = np.empty((self.rows.width, _ROOM), np.float32)
        self.ended: list[Hypothesis] = []  # the best ones, the best first

    def advance(self, found: Candidates) -> Chosen | None:
        """Choose among the candidates. None: the search of the group is over."""
        self._length += 1
        width = self._widths[min(self._length, len(self._widths)) - 1]
        if self._stop_texts is not None:
            stops = found.stops | self._stop_texts.found(found.parents, found.tokens)
            found = found._replace(stops=stops)
        ends = found.stops if self._length < self._max_tokens else np.ones_like(found.stops)
        ended = np.flatnonzero(ends[:width])
        if len(ended):
            self._end(found, ended)
        going = np.flatnonzero(~ends)[:width] if len(ended) else self._first[:width]
        going = going[: len(found.tokens)]
        if not len(going):
            return None
        self.rows.choose(found.totals[going])
        if len(going) < self.rows.width:  # the others are copies that count for nothing
            going = np.pad(going, (0, self.rows.width - len(going)), mode="edge")
        parents, tokens = found.parents[going], found.tokens[going]
        self._continue(parents, tokens, found.logprobs[going])
        if not self._can_improve():
            return None
        return Chosen(parents.tolist(), tokens.tolist())

    def _continue(
        self,
        parents: NDArray[np.int32],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
    ) -> None:
        before = self._length - 1
        if before == self._tokens.shape[1]:
            self._tokens = np.tile(self._tokens, (1, 2))
            self._logprobs = np.tile(self._logprobs, (1, 2))
        if (parents != self._first).any():
            self._tokens[:, :before] = self._tokens[parents, :before]
            self._logprobs[:, :before] = self._logprobs[parents, :before]
        self._tokens[:, before] = tokens
        self._logprobs[:, before] = logprobs
        if self._stop_texts is not None:
            self._stop_texts.follow(parents, tokens)
        if self.top is not None:
            self.top.follow(parents)

    def _end(self, found: Candidates, ended: NDArray[np.int64]) -> None:
        parents, before = found.parents[ended], self._length - 1
        tokens = np.column_stack((self._tokens[parents, :before], found.tokens[ended]))
        logprobs = np.column_stack((self._logprobs[parents, :before], found.logprobs[ended]))
        scores = self._scores(found.totals[ended], self._length)
        stopped = found.stops[ended]
        tops = [None if self.top is None else self.top.of(each) for each in parents.tolist()]
        for each in zip(scores.tolist(), tokens, logprobs, stopped.tolist(), tops, strict=True):
            self.ended.append(Hypothesis(*each))
        self.ended.sort(key=lambda each: -each.score)
        del self.ended[self._widths[-1] :]

    def _scores(self, totals: NDArray[np.float32], length: int) -> NDArray[np.float64]:
        with np.errstate(over="ignore", divide="ignore"):
            return totals / np.float64(length) ** self._search.length_penalty

    def _can_improve(self) -> bool:
        """Whether a beam may still become one of the best that have ended."""
        if len(self.ended) < self._widths[-1]:
            return True
        stopping = self._search.early_stopping
        if stopping is True:
            return False
        at_the_end = stopping == "never" and self._search.length_penalty > 0
        length = self._max_tokens if at_the_end else self._length
        return bool(self._scores(self.rows.scores[:1], length)[0] > self.ended[-1].score)


def _num_candidates(widths: Sequence[int], stops: int) -> int:
    """Continuations that may matter: so many that there is one for each beam even if all others
    end a sequence."""
    steps = pairwise((1, *widths, widths[-1]))
    return max(max(2 * width, width + stops * beams) for beams, width in steps)

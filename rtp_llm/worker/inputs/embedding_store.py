# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the sequences that are there, and those of one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.request.mm_features import MultiModalFeature
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences

if TYPE_CHECKING:
    from rtp_llm.worker.plan.step_plan import StepPlan

_RAW = {2: torch.int16, 4: torch.int32}  # NumPy has no bfloat16


@dataclass(frozen=True)
class StepEmbeddings:
    """The rows of a step on the host: ``places`` int64 [M], its tokens, and ``raw`` [M, width],
    the numbers as integers of the same size."""

    places: NDArray[np.int64]
    raw: NDArray[np.integer]


@dataclass(frozen=True)
class _Span:
    """Rows [length, width] for the tokens from ``offset`` on."""

    offset: int
    rows: Tensor

    @property
    def end(self) -> int:
        return self.offset + len(self.rows)


class EmbeddingStore:
    """Keeps what requests brought until their sequences end, on the host: a sequence that was
    preempted, or a chunk that a cached prefix cuts short, needs any part of it.

    How much that may be is up to admission.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        """``width`` of a row, in numbers of type ``dtype`` on the device."""
        self._width, self._dtype = width, dtype
        self._spans: dict[int, Sequence[_Span]] = {}
        self._ids = np.empty(0, np.int64)  # sorted
        self._ends = np.empty(0, np.int64)  # of each one's last span

    def add(self, new: NewSequences) -> None:
        """Keep the features of new sequences."""
        if new.mm_features:
            spans = [self._span(each) for each in new.mm_features]
            self._spans.update((sequence, spans) for sequence in new.ids)
            self._index()

    def fork(self, forked: ForkedSequences) -> None:
        """Share the features of a sequence with those that continue it."""
        if (spans := self._spans.get(forked.source)) is not None:
            self._spans.update((each, spans) for each in forked.ids)
            self._index()

    def end(self, ids: Iterable[int]) -> None:
        """Drop the features of sequences that no later plan names."""
        before = len(self._spans)
        for each in ids:
            self._spans.pop(each, None)
        if len(self._spans) < before:
            self._index()

    def rows_of(self, plan: StepPlan) -> StepEmbeddings | None:
        """The rows that a step needs; None: it has no placeholders."""
        if not self._spans:
            return None
        starts = plan.cu_seqlens_q[:-1]
        found = np.searchsorted(self._ids, plan.seq_ids).clip(max=len(self._ids) - 1)
        takes = self._ids[found] == plan.seq_ids
        takes &= plan.positions[starts] < self._ends[found]
        places, rows = [], []
        for place in np.flatnonzero(takes).tolist():
            start, stop = plan.cu_seqlens_q[place : place + 2].tolist()
            first = int(plan.positions[start])
            for span in self._spans[int(plan.seq_ids[place])]:
                begin, end = max(span.offset, first), min(span.end, first + stop - start)
                if begin < end:
                    places.append(np.arange(begin, end) + (start - first))
                    rows.append(span.rows[begin - span.offset : end - span.offset])
        if not rows:
            return None
        raw = torch.cat(rows).view(_RAW[self._dtype.itemsize]).numpy()
        return StepEmbeddings(np.concatenate(places), raw)

    def _span(self, feature: MultiModalFeature) -> _Span:
        dtype: torch.dtype = getattr(torch, feature.dtype)
        numbers = torch.frombuffer(bytearray(feature.data), dtype=dtype).view(-1, self._width)
        return _Span(feature.mm_position.offset, numbers.to(self._dtype))

    def _index(self) -> None:
        self._ids = np.array(sorted(self._spans), np.int64)
        ends = [self._spans[each][-1].end for each in self._ids.tolist()]
        self._ends = np.array(ends, np.int64)

# SPDX-License-Identifier: Apache-2.0
"""A list of (id, value) pairs for each slot, gathered for the rows of a step without a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FIRST_WIDTH = 8


class Pairs(NamedTuple):
    """Pairs of several rows: row [P] int32, id [P] int32, value [P] float32."""

    rows: NDArray[np.int32]
    ids: NDArray[np.int32]
    values: NDArray[np.float32]


class RaggedTable:
    """Pairs by slot. Memory is taken at the first use and widened to the longest list."""

    def __init__(self, num_slots: int) -> None:
        self._counts = np.zeros(num_slots, np.int64)
        self._ids = np.empty((num_slots, 0), np.int32)
        self._values = np.empty((num_slots, 0), np.float32)

    def put(self, slot: int, ids: Sequence[int], values: Sequence[float]) -> None:
        """Replace the list of ``slot``."""
        count = len(ids)
        if count > self._ids.shape[1]:
            self._widen(count)
        self._counts[slot] = count
        self._ids[slot, :count] = ids
        self._values[slot, :count] = values

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Give ``slots`` the list of slot ``source``."""
        for table in (self._counts, self._ids, self._values):
            table[slots] = table[source]

    def _widen(self, count: int) -> None:
        num_slots, old = self._ids.shape
        width = max(_FIRST_WIDTH, 1 << (count - 1).bit_length())
        for name in ("_ids", "_values"):
            narrow = getattr(self, name)
            wide = np.empty((num_slots, width), narrow.dtype)
            wide[:, :old] = narrow
            setattr(self, name, wide)

    def gather(self, slots: NDArray[np.int32], rows: NDArray[np.int32]) -> Pairs:
        """The pairs of ``slots`` [R], labelled with ``rows`` [R]."""
        counts = self._counts[slots]
        flat = flat_index(slots, counts, self._ids.shape[1])
        return Pairs(
            np.repeat(rows, counts), self._ids.reshape(-1)[flat], self._values.reshape(-1)[flat]
        )


def flat_index(
    slots: NDArray[np.int32], counts: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """Flat indices of the first ``counts`` [R] entries of ``slots`` [R] in a table of ``width``."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    within = np.arange(total) - np.repeat(ends - counts, counts)
    flat: NDArray[np.int64] = np.repeat(slots.astype(np.int64) * width, counts) + within
    return flat

# SPDX-License-Identifier: Apache-2.0
"""Matches the blocks that a peer exports with those that a load asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.interface import HOST

_LAST_DEVICE = 2**16
# Columns of a store's row, see layout.py.
_POSITION, _ADDRESS, _ROWS, _BYTES = 1, 3, 4, 5
_COLUMNS = 7


class RegionTable:
    """What a peer lets us read. It may say anything: nothing outside is asked for."""

    def __init__(self, regions: Iterable[Sequence[int]]) -> None:
        """Raises ValueError for what is no memory."""
        table = _integers([tuple(region) for region in regions]).reshape(-1, 3)
        begins, sizes, devices = table[table[:, 0].argsort()].T
        wrong = (begins <= 0) | (sizes <= 0) | (devices < HOST) | (devices > _LAST_DEVICE)
        if (wrong | (begins > np.iinfo(np.int64).max - sizes)).any():
            raise ValueError(f"memory at {table.tolist()} is none")
        self._begins, self._ends, self._devices = begins, begins + sizes, devices

    def check(self, addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Raise ValueError unless each range lies in one region."""
        at = np.searchsorted(self._begins, addresses, side="right") - 1
        inside = at >= 0
        # Relative to the begin of a region nothing overflows.
        inside[inside] = sizes[inside] <= self._ends[at[inside]] - addresses[inside]
        if not inside.all():
            outside = int(addresses[~inside][0])
            raise ValueError(f"a block at {outside:#x} is outside of the memory that is offered")

    def devices(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each address, which was checked, the device or HOST."""
        found: NDArray[np.int64] = self._devices[
            np.searchsorted(self._begins, addresses, side="right") - 1
        ]
        return found


class LayerMatch:
    """The places of one layer's blocks, until they have been found at the peer."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        """``rows`` int64 [N, 7] of ours. Raises ValueError for blocks in several pieces."""
        if (rows[:, _ROWS] != 1).any():
            raise ValueError("blocks in several rows go by TCP only")
        self._rows = rows[np.lexsort((rows[:, _POSITION], rows[:, 0]))]
        self._places = _places(self._rows)
        self._left = np.ones(len(rows), bool)

    @property
    def found(self) -> bool:
        """All of them."""
        return not self._left.any()

    def take(self, offered: NDArray[np.int64], regions: RegionTable) -> NDArray[np.int64]:
        """Pieces int64 [M, 3] (there, here, bytes) of those that were not found before.

        Raises ValueError when the peer's blocks are of another size, or not in its memory.
        """
        at = np.searchsorted(self._places, _places(offered)) % len(self._places)
        same = (self._rows[at, :3] == offered[:, :3]).all(1) & self._left[at]
        at, first = np.unique(at[same], return_index=True)
        there, here = offered[same][first], self._rows[at]
        if (there[:, _ROWS:_COLUMNS] != here[:, _ROWS:_COLUMNS]).any():
            raise ValueError("the peer's blocks are of another size")
        regions.check(there[:, _ADDRESS], there[:, _BYTES])
        self._left[at] = False
        return _joined(np.column_stack([there[:, _ADDRESS], here[:, [_ADDRESS, _BYTES]]]))


def counter_piece(there: int, here: int, regions: RegionTable) -> NDArray[np.int64]:
    """The piece of one counter. Raises ValueError when it is not in the peer's memory."""
    piece = _integers([(there, here, 8)])
    regions.check(piece[:, 0], piece[:, 2])
    return piece


def rows_from(wire: bytes) -> NDArray[np.int64]:
    """int64 [N, 7] of a message. Raises ValueError when it is none."""
    return np.frombuffer(wire, np.int64).reshape(-1, _COLUMNS)


def _integers(values: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Raises ValueError for what a message may hold and 64 bits do not."""
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise ValueError(f"numbers beyond 64 bits: {values}") from error


def _places(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Plane and position as one number; unequal ones may share it if a peer makes them up."""
    return (rows[:, 0] << 32) + rows[:, _POSITION]


def _joined(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Neighbours on both sides as one piece: libraries take as long for a small one."""
    if not len(pieces):
        return pieces
    pieces = pieces[pieces[:, 1].argsort()]
    ends = pieces[:-1, :2] + pieces[:-1, 2:]
    begins = np.flatnonzero(np.r_[True, (ends != pieces[1:, :2]).any(1)])
    joined = pieces[begins]
    joined[:, 2] = np.add.reduceat(pieces[:, 2], begins)
    return joined

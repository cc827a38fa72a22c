# SPDX-License-Identifier: Apache-2.0
"""A library that copies within this process, and fails or hangs when it is told to."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.interface import ReadError, Region


class CopyingLibrary:
    """A reading copies when it is asked how far it is, fails (``broken``) or goes on (``hangs``).

    ``insane``, ``stubborn``: to read, or to close, raises what nobody expects. ``readings``: how
    many have begun.
    """

    def __init__(self) -> None:
        self.readings = 0
        self.broken = self.hangs = self.unreachable = self.insane = self.stubborn = False
        self.shared: dict[bytes, CopyingShared] = {}
        self.readers: list[CopyingReader] = []
        self._names = itertools.count()

    def share(self, regions: Sequence[Region], host: str) -> CopyingShared:
        """See Library."""
        shared = CopyingShared(b"%d" % next(self._names), regions)
        self.shared[shared.address] = shared
        return shared

    def attach(self) -> None:
        """See Library."""

    def connect(
        self, address: bytes, theirs: Sequence[Region], ours: Sequence[Region], host: str
    ) -> CopyingReader:
        """See Library."""
        if self.unreachable or address not in self.shared:
            raise ReadError("nobody is there")
        self.readers.append(CopyingReader(self, self.shared[address], ours))
        return self.readers[-1]


class CopyingShared:
    """Regions that are there until they are closed."""

    def __init__(self, address: bytes, regions: Sequence[Region]) -> None:
        self.address, self.regions = address, list(regions)

    def close(self) -> None:
        """See Shared."""
        self.regions = []


class CopyingReader:
    """Copies nothing any more once it is closed."""

    def __init__(
        self, library: CopyingLibrary, peer: CopyingShared, ours: Sequence[Region]
    ) -> None:
        self.library, self.peer, self.ours = library, peer, list(ours)
        self.closed = False

    def read(self, pieces: NDArray[np.int64]) -> CopyingReading:
        """See Reader."""
        if self.library.insane:
            raise KeyError("what nobody expects")
        self.library.readings += 1
        return CopyingReading(self, pieces)

    def close(self) -> None:
        """See Reader."""
        self.closed = True
        if self.library.stubborn:
            raise OSError("will not close")


class CopyingReading:
    """Copies when it is asked how far it is."""

    def __init__(self, reader: CopyingReader, pieces: NDArray[np.int64]) -> None:
        self._reader, self._pieces = reader, pieces

    def poll(self) -> bool:
        """See Reading."""
        reader = self._reader
        assert not reader.closed
        if reader.library.broken:
            raise ReadError("the wire is cut")
        if reader.library.hangs:
            return False
        for there, here, size in self._pieces.tolist():
            if not _inside(reader.peer.regions, there, size):
                raise ReadError("the peer has no such memory")
            assert _inside(reader.ours, here, size)
            ctypes.memmove(here, there, size)
        return True


def _inside(regions: Sequence[Region], address: int, size: int) -> bool:
    return any(base <= address and address + size <= base + length for base, length, _ in regions)

# SPDX-License-Identifier: Apache-2.0
"""What a library must give that reads the memory of other processes; each in a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# The device of a region that is the host's.
HOST = -1
# Memory that stays where it is as long as the process lives: address, bytes, and the number that
# its device has in the process, or HOST.
Region = tuple[int, int, int]


class ReadError(RuntimeError):
    """Bytes did not come, or may still be on their way: only a closed reader writes no more."""


class Reading(Protocol):
    """Some bytes under way."""

    def poll(self) -> bool:
        """All of them are here. Raises ReadError."""


class Reader(Protocol):
    """A way to the memory of one peer."""

    def read(self, pieces: NDArray[np.int64]) -> Reading:
        """Begin to copy pieces int64 [N, 3]: address there, address here, bytes.

        All of them were compared with the regions of both sides. Raises ReadError.
        """

    def close(self) -> None:
        """Give up what is under way: nothing is written to this process when it returns."""


class Shared(Protocol):
    """Memory of this process that peers may read."""

    @property
    def address(self) -> bytes:
        """What a peer needs in order to reach it."""

    def close(self) -> None:
        """Let nobody read any more."""


class Library(Protocol):
    """One of them, imported. Its objects are used by one thread at a time."""

    def attach(self) -> None:
        """Let this thread use its objects."""

    def share(self, regions: Sequence[Region], host: str) -> Shared:
        """Let peers, who know this machine as ``host``, read the regions. Raises ReadError."""

    def connect(
        self, address: bytes, theirs: Sequence[Region], ours: Sequence[Region], host: str
    ) -> Reader:
        """A way to a peer's regions on ``host`` that writes to our regions. Raises ReadError."""

# SPDX-License-Identifier: Apache-2.0
"""A prefill worker's memory as a decode worker knows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.interface import Library, Reader, ReadError, Reading, Region
from rtp_llm.disagg.transports.match import RegionTable
from rtp_llm.disagg.wire.messages import Offer


class PeerMemory:
    """Its regions and the way to them, which is made when it is needed and may be cut.

    ``cuts`` counts how often: a reading from before a cut writes nothing any more. ``trouble``: how
    the library failed first, empty while it has not.
    """

    def __init__(
        self, library: Library, ours: Sequence[Region], host: str, offer: Offer | None
    ) -> None:
        """``offer`` None: it never said where its memory is."""
        self._library, self._ours, self._host, self._offer = library, ours, host, offer
        self.regions = RegionTable(offer.regions if offer else ())
        self.cuts = 0
        self.trouble = ""
        self._reader: Reader | None = None

    def read(self, pieces: NDArray[np.int64]) -> Reading:
        """Begin to read. Raises ReadError, after which the way is cut."""
        try:
            return self._connected().read(pieces)
        except ReadError as error:
            self.cut(str(error))
            raise

    def cut(self, trouble: str = "") -> None:
        """End everything that is under way from it; ``trouble``: how the library failed."""
        self.trouble = self.trouble or trouble
        self.cuts += 1
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _connected(self) -> Reader:
        if self._offer is None:
            raise ReadError("it has not said where its memory is")
        if self._reader is None:
            offer = self._offer
            self._reader = self._library.connect(
                offer.address, offer.regions, self._ours, self._host
            )
        return self._reader

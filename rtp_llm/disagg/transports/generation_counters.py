# SPDX-License-Identifier: Apache-2.0
"""Counters of 64 bits at fixed addresses, which peers read."""

from __future__ import annotations

import numpy as np

from rtp_llm.disagg.transports.interface import HOST, Region


class GenerationCounters:
    """One for each request whose blocks a prefill worker exports: the request's name, then 0.

    A decode worker reads it after the blocks. If it is still the name, the blocks were pinned
    while they were read, whatever either side noticed meanwhile.
    """

    def __init__(self, count: int) -> None:
        self._memory = np.zeros(count, np.int64)
        self._free = list(range(count))
        self.region: Region = (self._memory.ctypes.data, self._memory.nbytes, HOST)

    def take(self, value: int = 0) -> int | None:
        """Index of a counter that is set to ``value``; None when all are taken."""
        if not self._free:
            return None
        counter = self._free.pop()
        self._memory[counter] = value
        return counter

    def give_back(self, counter: int) -> None:
        """Set it to 0 and make it free."""
        self._memory[counter] = 0
        self._free.append(counter)

    def read(self, counter: int) -> int:
        """The value of a counter, of this side or read from a peer."""
        return int(self._memory[counter])

    def address(self, counter: int) -> int:
        """Address of a counter, in this process."""
        return self.region[0] + counter * 8

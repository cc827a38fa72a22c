"""Words of 64 bits at addresses that stay, given out one by one."""

from __future__ import annotations

import numpy as np

from rtp_llm.disagg.reads.face import Region


class Words:
    """A prefill worker has one for each request whose blocks it holds: its name, 0 afterwards.

    A decode worker reads it after the blocks. If it is still the name, then the blocks were held
    while they were read, whatever either side noticed meanwhile.
    """

    def __init__(self, count: int) -> None:
        self._memory = np.zeros(count, np.int64)
        self._free = list(range(count))
        self.region: Region = (self._memory.ctypes.data, self._memory.nbytes)

    def take(self, value: int = 0) -> int | None:
        """A word with this value; None when all are taken."""
        if not self._free:
            return None
        word = self._free.pop()
        self._memory[word] = value
        return word

    def give_back(self, word: int) -> None:
        """It is 0 from now on."""
        self._memory[word] = 0
        self._free.append(word)

    def read(self, word: int) -> int:
        """Its value."""
        return int(self._memory[word])

    def address(self, word: int) -> int:
        """Where it is."""
        return self.region[0] + word * 8

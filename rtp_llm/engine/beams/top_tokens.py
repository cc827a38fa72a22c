# SPDX-License-Identifier: Apache-2.0
"""The most likely tokens at each place of the beams of a group, for requests that ask for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtp_llm.ops.sampling.sampling import LEAST_LOGPROB


class TopTokens(NamedTuple):
    """``values`` float32 [T, n], descending, and ``ids`` int32 [T, n] of T places."""

    values: NDArray[np.float32]
    ids: NDArray[np.int32]


class TopHistory:
    """Follows W beams: the places before the present one, and what was just found for that."""

    def __init__(self, width: int, count: int) -> None:
        """``count``: so many tokens of each place."""
        self.count = count
        self._values = np.empty((width, 0, count), np.float32)
        self._ids = np.empty((width, 0, count), np.int32)

    def take(self, values: NDArray[np.float32], ids: NDArray[np.int32]) -> None:
        """Add the present place of each beam, [W, n or more]; forbidden tokens have -inf."""
        values, ids = values[:, None, : self.count], ids[:, None, : self.count]
        values = np.maximum(values, np.float32(LEAST_LOGPROB))
        self._values = np.concatenate((self._values, values), axis=1)
        self._ids = np.concatenate((self._ids, ids), axis=1)

    def of(self, beam: int) -> TopTokens:
        """All places of a beam."""
        return TopTokens(self._values[beam], self._ids[beam])

    def follow(self, parents: NDArray[np.int32]) -> None:
        """The beams go on from ``parents`` [W]."""
        self._values, self._ids = self._values[parents], self._ids[parents]

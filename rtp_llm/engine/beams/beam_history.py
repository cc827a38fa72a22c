# SPDX-License-Identifier: Apache-2.0
"""The tokens of the beams of a group: a step is added, and nothing before it moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BeamHistory:
    """What each step has chosen, by beam: its parent in the step before, and its token."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]] = []

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def add(
        self,
        parents: NDArray[np.int32],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
    ) -> None:
        """Add a step, [W] each; the arrays are kept."""
        self._steps.append((parents, tokens, logprobs))

    def of(
        self, beams: Sequence[tuple[int, int]]
    ) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """For each (beam, length): tokens int32 [length] and log-probabilities float32 [length] of
        what that beam was after so many steps."""
        if not self._steps:
            return [(np.empty(0, np.int32), np.empty(0, np.float32)) for _ in beams]
        all_parents, tokens, logprobs = (np.stack(each) for each in zip(*self._steps, strict=True))
        parents, found = all_parents.tolist(), []
        for beam, length in beams:
            path = np.empty(length, np.int64)
            for step in range(length - 1, -1, -1):
                path[step] = beam
                beam = parents[step][beam]
            steps = np.arange(length)
            found.append((tokens[steps, path], logprobs[steps, path]))
        return found

# SPDX-License-Identifier: Apache-2.0
"""Stop strings in a beam search, which end a sequence as a stop token does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


class StopTexts:
    """Looks for stop strings in the texts of beams, as bytes: a search in UTF-8 finds the same as
    one in characters."""

    def __init__(
        self,
        stops: Sequence[str],
        text_bytes: Callable[[int], bytes],
        width: int,
        min_tokens: int = 0,
    ) -> None:
        """``text_bytes`` gives what a token adds to a text. A stop string that is complete within
        the first ``min_tokens`` tokens does not count."""
        self._stops = [stop.encode() for stop in stops]
        self._text_bytes, self._min_tokens = text_bytes, min_tokens
        self._kept = max(map(len, self._stops)) - 1
        self._ends = [b""] * width  # the last bytes of each beam
        self._length = 0

    def found(self, parents: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which tokens [K] complete a stop string in the beams ``parents`` [K]."""
        if self._length < self._min_tokens:
            return np.zeros(len(tokens), np.bool_)
        candidates = zip(parents.tolist(), tokens.tolist(), strict=True)
        return np.array([self._completes(*each) for each in candidates], np.bool_)

    def _completes(self, beam: int, token: int) -> bool:
        added = self._text_bytes(token)
        text, before = self._ends[beam] + added, len(self._ends[beam])
        # From where an occurrence ends in the new bytes.
        starts = ((stop, max(0, before - len(stop) + 1)) for stop in self._stops)
        return bool(added) and any(text.find(stop, start) >= 0 for stop, start in starts)

    def follow(self, parents: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """The beams go on from ``parents`` [W] with ``tokens`` [W]."""
        self._length += 1
        chosen = zip(parents.tolist(), tokens.tolist(), strict=True)
        texts = [self._ends[beam] + self._text_bytes(token) for beam, token in chosen]
        self._ends = [text[max(0, len(text) - self._kept) :] for text in texts]

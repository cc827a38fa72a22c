# SPDX-License-Identifier: Apache-2.0
"""What a worker receives about sequences that continue another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ForkedSequences:
    """Sequences of the same request that continue ``tokens`` int32 [T], the prompt and output of
    sequence ``source`` so far; plans name them by ``ids`` [N], their settings by ``slots`` [N].

    Their settings are those under ``source_slot``, except for the ``seeds`` [N]. ``last_tokens``
    [N] replace the last of the tokens.
    """

    source: int
    source_slot: int
    ids: Sequence[int]
    slots: Sequence[int]
    seeds: Sequence[int]
    tokens: NDArray[np.int32]
    last_tokens: Sequence[int]

    @property
    def histories(self) -> Iterator[NDArray[np.int32]]:
        """The prompt and output of each, int32 [T]."""
        for token in self.last_tokens:
            yield np.append(self.tokens[:-1], np.int32(token))

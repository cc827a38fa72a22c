# SPDX-License-Identifier: Apache-2.0
"""What the heads make of prompts, as it leaves the worker; needs no torch to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pooled:
    """``values`` float32 [R, W]: of a sequence's prompt, of which R is 1 unless each token has its
    own; W is the width of an embedding, or the number of labels."""

    sequence: int
    values: NDArray[np.float32]


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of P prompt tokens of ``sequence``, from position ``start`` on.

    ids int32 [P], chosen float32 [P], values float32 [P, k], top_ids int32 [P, k], ranks int32 [P]:
    how many tokens are at least as likely, itself included.
    """

    sequence: int
    start: int
    ids: NDArray[np.int32]
    chosen: NDArray[np.float32]
    values: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    ranks: NDArray[np.int32]


PromptOutput: TypeAlias = PromptScores | Pooled

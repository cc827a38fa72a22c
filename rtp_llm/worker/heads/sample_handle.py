# SPDX-License-Identifier: Apache-2.0
"""What a step samples, on its way to the host and there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.heads.beam_table import Selected, Selection

if TYPE_CHECKING:
    from rtp_llm.device import Device


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities of L tokens of a step, from the logits as the model gave them.

    places int32 [L]: which of the step's ``tokens``, read row by row; wanted int32 [L], chosen
    float32 [L], values float32 [L, k], ids int32 [L, k].
    """

    places: NDArray[np.int32]
    wanted: NDArray[np.int32]
    chosen: NDArray[np.float32]
    values: NDArray[np.float32]
    ids: NDArray[np.int32]

    def of(self, chosen: NDArray[np.int64], places: NDArray[np.int32]) -> Logprobs:
        """The log-probabilities of the entries ``chosen`` [M], with tokens at ``places`` [M]."""
        return Logprobs(
            places, self.wanted[chosen], self.chosen[chosen], self.values[chosen], self.ids[chosen]
        )


@dataclass(frozen=True)
class Sampled:
    """row_tokens int32 [R]; ``broken`` rows have an error in place of a token.

    accepted int32 [O, K] in a step that verifies drafts: the tokens of each output that count.
    ``beams``: how beams continue, whose own tokens and log-probabilities mean nothing.
    """

    row_tokens: NDArray[np.int32]
    broken: int
    logprobs: Logprobs | None
    accepted: NDArray[np.int32] | None = None
    beams: Selected | None = None

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [O] or [O, K] as the scheduler's ``commit`` takes them."""
        return self.row_tokens if self.accepted is None else self.accepted


@dataclass(frozen=True)
class RowScores:
    """The arrays of Logprobs on the device, of ``rows`` int32 [L] that want ``wanted`` [L]."""

    rows: NDArray[np.int32]
    wanted: NDArray[np.int32]
    arrays: tuple[Tensor, Tensor, Tensor]

    def of(self, chosen: NDArray[np.int64], index: Tensor) -> RowScores:
        """Those of the entries ``chosen`` [M], ``index`` on the device."""
        first, second, third = (each.index_select(0, index) for each in self.arrays)
        return RowScores(self.rows[chosen], self.wanted[chosen], (first, second, third))


class SampleHandle:
    """The tokens of a step on their way to the host."""

    def __init__(
        self,
        device: Device,
        sampled: tuple[Tensor, Tensor],
        scores: RowScores | None = None,
        beams: Selection | None = None,
    ) -> None:
        """``sampled``: tokens and status of each row."""
        parts = () if scores is None else scores.arrays
        selected = () if beams is None else beams.arrays
        self._download = device.start_download(*sampled, *parts, *selected)
        self._scores, self._beams = scores, beams

    def read(self) -> Sampled:
        """Return the tokens, once. The only place of a step that waits for the device."""
        tokens, status, *arrays = self._download.read()
        broken = int(np.count_nonzero(status))
        if broken:  # errors in place of tokens: -1 - status
            tokens = np.where(status, -1 - status.astype(np.int32), tokens)
        logprobs, beams = None, None
        if self._scores is not None:
            logprobs = Logprobs(self._scores.rows, self._scores.wanted, *arrays[:3])
        if self._beams is not None:
            numbers, values, *tops = arrays[-len(self._beams.arrays) :]
            beams = Selected(self._beams.groups, *numbers, *values, *tops)
        return Sampled(tokens, broken, logprobs, beams=beams)

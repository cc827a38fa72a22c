# SPDX-License-Identifier: Apache-2.0
"""The scores of beams whose requests change logits: as transformers computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.ops.sampling.sampling import ALL_BANNED, LEAST_LOGPROB, SAMPLED

if TYPE_CHECKING:
    from rtp_llm.device import Device


@dataclass(frozen=True)
class ScoredBeams:
    """B of the rows whose top log-probabilities are computed: ``places`` int64 [B] among them, and
    ``mass`` float32 [B], the logarithm of what changes left of each row's distribution."""

    places: Tensor
    mass: Tensor

    def scores(self, values: Tensor) -> Tensor:
        """The top ``values`` [L, k] with the scores of these rows; forbidden tokens have -inf."""
        own = values.index_select(0, self.places)
        own = torch.where(own > LEAST_LOGPROB, own + self.mass[:, None], -torch.inf)
        return values.index_copy(0, self.places, own)


class BeamScores:
    """Changes apply to log-probabilities instead of logits, which are not made a distribution
    again: what is left of a token's log-probability is its score, which is added to its beam's."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._device = device
        self._changed = np.zeros(num_slots, np.bool_)

    def put(self, slots: Sequence[int], changed: bool) -> None:
        """Whether the sequences of ``slots`` are beams of a request that changes logits."""
        self._changed[slots] = changed

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Make ``slots`` beams if slot ``source`` is one."""
        self._changed[slots] = self._changed[source]

    def normalize(self, logits: Tensor, row_slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """Turn the rows of such beams in ``logits`` [R, vocabulary] into log-probabilities, before
        the changes; returns these rows [B]."""
        rows = np.flatnonzero(self._changed[row_slots])
        if len(rows):
            index = self._device.upload(rows)
            logits.index_copy_(0, index, logits.index_select(0, index).log_softmax(1))
        return rows

    def take(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        status: Tensor,
        places: NDArray[np.int64],
        scored: Tensor,
    ) -> ScoredBeams:
        """Put the changed ``rows`` [B] of ``logits`` into their ``places`` [B] of ``scored``, the
        logits of which the top log-probabilities are computed. A beam without allowed tokens is no
        error in ``status`` [R], as others may have some."""
        index, at = self._device.upload_all(rows, places)
        part = logits.index_select(0, index)
        scored.index_copy_(0, at, part)
        own = status.index_select(0, index)
        status.index_copy_(0, index, own.masked_fill_(own == ALL_BANNED, SAMPLED))
        return ScoredBeams(at, part.logsumexp(1))

# SPDX-License-Identifier: Apache-2.0
"""Locally typical sampling: only tokens about as surprising as the distribution is on average.

Meister et al., Locally Typical Sampling, TACL 2023. What is kept is what transformers keeps, after
temperature, top-k, top-p and min-p, in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.ops.sampling.sampling_reference import weigh_rows
from rtp_llm.worker.heads.slot_settings import RowSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rtp_llm.device import Device
    from rtp_llm.request.sampling_params import SamplingParams

# Logits that are processed together: about 100 MB of temporary memory.
_MOST_LOGITS = 2**20


class TypicalSampling:
    """``typical_p`` by slot. Rows that ask for it are sorted twice; the others cost nothing."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._upload_all = device.upload_all
        self._mass = np.ones(num_slots, np.float64)

    def put(self, slots: Sequence[int], params: SamplingParams) -> None:
        """Write a request's setting under the slots of its sequences."""
        self._mass[slots] = 1.0 if params.greedy else params.typical_p

    def apply(self, logits: Tensor, settings: RowSettings, slots: NDArray[np.int32]) -> RowSettings:
        """Set the logits [R, vocabulary] of tokens that are not typical to -inf.

        Returns ``settings`` with filters that remove nothing more from those rows: their own
        filters are applied first.
        """
        rows = np.flatnonzero(self._mass[slots] < 1)
        if not len(rows):
            return settings
        index, mass = self._upload_all(rows, self._mass[slots[rows]])
        most = max(1, _MOST_LOGITS // logits.shape[1])
        filters = settings.temperature, settings.top_k, settings.top_p, settings.min_p
        for begin in range(0, len(rows), most):
            part, shares = index[begin : begin + most], mass[begin : begin + most]
            taken = logits.index_select(0, part)
            given = (each.index_select(0, part) for each in filters)
            weights = weigh_rows(taken, *given).weights
            # Logits that are not finite stay: the sampler reports what is wrong with them.
            taken.masked_fill_(taken.isfinite() & ~typical(weights, shares), -torch.inf)
            logits.index_copy_(0, part, taken)
        return settings._replace(
            top_p=settings.top_p.index_fill(0, index, 1.0),
            min_p=settings.min_p.index_fill(0, index, 0.0),
        )


def typical(weights: Tensor, mass: Tensor) -> Tensor:
    """Which tokens are kept, bool [R, V]: those nearest to the mean surprise that have ``mass``
    [R] together, and what is as near as the last of them.

    weights float64 [R, V]: probabilities up to a factor for each row, 0 for tokens left out.
    """
    possible = weights > 0
    surprise = -weights.log()
    total = weights.sum(1, keepdim=True)
    mean = torch.where(possible, weights * surprise, 0).sum(1, keepdim=True) / total
    distance = (surprise - mean).abs()
    nearest, order = distance.sort(dim=1)
    too_few = weights.gather(1, order).cumsum(1) < mass[:, None] * total
    last = too_few.sum(1, keepdim=True).clamp(max=weights.shape[1] - 1)
    return possible & (distance <= nearest.gather(1, last))

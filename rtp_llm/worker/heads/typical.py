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
_MAX_LOGITS = 2**20
# On a CPU so many of the nearest tokens are found first: together they nearly always have enough.
_NEAREST = 16384


class TypicalSampling:
    """``typical_p`` by slot. Rows that do not ask for it cost nothing; those that do are sorted
    for top-k and top-p, and once more on devices other than a CPU."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._upload_all = device.upload_all
        self._mass = np.ones(num_slots, np.float64)
        self._ranked = np.zeros(num_slots, np.bool_)  # top-k or top-p need the order of tokens

    def put(self, slots: Sequence[int], params: SamplingParams) -> None:
        """Write a request's setting under the slots of its sequences."""
        self._mass[slots] = 1.0 if params.greedy else params.typical_p
        self._ranked[slots] = params.top_k > 0 or params.top_p < 1

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Give ``slots`` the setting of slot ``source``."""
        self._mass[slots] = self._mass[source]
        self._ranked[slots] = self._ranked[source]

    def apply(self, logits: Tensor, settings: RowSettings, slots: NDArray[np.int32]) -> RowSettings:
        """Set the logits [R, vocabulary] of tokens that are not typical to -inf.

        Returns ``settings`` with filters that remove nothing more from those rows: their own
        filters are applied first.
        """
        rows = np.flatnonzero(self._mass[slots] < 1)
        if not len(rows):
            return settings
        ranked = self._ranked[slots[rows]]
        rows = np.concatenate([rows[~ranked], rows[ranked]])
        index, mass = self._upload_all(rows, self._mass[slots[rows]])
        unranked = len(rows) - int(ranked.sum())
        most = max(1, _MAX_LOGITS // logits.shape[1])
        for begin, end, ranks in ((0, unranked, False), (unranked, len(rows), True)):
            for first in range(begin, end, most):
                chunk = slice(first, min(first + most, end))
                _keep_typical(logits, settings, index[chunk], mass[chunk], ranked=ranks)
        return settings._replace(
            top_p=settings.top_p.index_fill(0, index, 1.0),
            min_p=settings.min_p.index_fill(0, index, 0.0),
        )


def _keep_typical(
    logits: Tensor, settings: RowSettings, rows: Tensor, mass: Tensor, *, ranked: bool
) -> None:
    """Set the logits of the rows' tokens that are not typical to -inf."""
    taken = logits.index_select(0, rows)
    filters = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    temperature, top_k, top_p, min_p = (each.index_select(0, rows) for each in filters)
    if ranked:
        weights = weigh_rows(taken, temperature, top_k, top_p, min_p).weights
    else:
        weights = _weigh_unranked(taken, temperature, min_p)
    # Logits that are not finite stay: the sampler reports what is wrong with them.
    taken.masked_fill_(taken.isfinite() & ~typical(weights, mass), -torch.inf)
    logits.index_copy_(0, rows, taken)


def _weigh_unranked(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """The weights of `weigh_rows` without top-k and top-p, for which nothing is sorted."""
    cleaned = torch.where(logits.isfinite(), logits, -torch.inf).double()
    best = cleaned.amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float64).min)
    weights = cleaned.sub_(best).div_(temperature.double()[:, None]).exp_()
    return weights.masked_fill_(weights < min_p.double()[:, None], 0)


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
    wanted = mass[:, None] * total
    return possible & (distance <= _farthest(distance, weights, wanted))


def _farthest(distance: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """How far the last of the nearest tokens is that have the weight ``wanted``, [R, 1]."""
    # To sort all of a vocabulary takes a CPU ten times as long. Elsewhere the answer to whether
    # the nearest are enough would have to be waited for.
    few = distance.device.type == "cpu" and distance.shape[1] > _NEAREST
    nearest, order = distance.topk(_NEAREST, 1, False) if few else distance.sort(dim=1)
    mass = weights.gather(1, order).cumsum(1)
    if few and bool((mass[:, -1:] < wanted).any()):
        nearest, order = distance.sort(dim=1)
        mass = weights.gather(1, order).cumsum(1)
    last = (mass < wanted).sum(1, keepdim=True).clamp(max=mass.shape[1] - 1)
    return nearest.gather(1, last)

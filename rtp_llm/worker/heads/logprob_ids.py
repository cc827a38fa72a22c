# SPDX-License-Identifier: Apache-2.0
"""Token ids for which a request wants log-probabilities instead of the most likely tokens'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.ops.sampling.sampling import LEAST_LOGPROB

if TYPE_CHECKING:
    from rtp_llm.device import Device


class LogprobIds:
    """Wanted ids by slot."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._device = device
        self._ids = np.zeros((num_slots, 0), np.int32)
        self.counts = np.zeros(num_slots, np.int32)

    def put(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Replace the ids of ``slots``."""
        if len(ids) > self._ids.shape[1]:
            wide = np.zeros((len(self._ids), len(ids)), np.int32)
            wide[:, : self._ids.shape[1]] = self._ids
            self._ids = wide
        self.counts[slots] = len(ids)
        self._ids[slots, : len(ids)] = ids

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Give ``slots`` the ids of slot ``source``."""
        self.counts[slots] = self.counts[source]
        self._ids[slots] = self._ids[source]

    def replace(
        self, logits: Tensor, slots: NDArray[np.int32], values: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The top ``values`` and ``ids`` [L, k] of ``logits`` [L, vocabulary] in ``slots`` [L].

        Rows with requested ids have these first, and [L, k] is as wide as they need.
        """
        rows = np.flatnonzero(self.counts[slots])
        if not len(rows):
            return values, ids
        width = max(int(self.counts[slots].max()), values.shape[1])
        requested = np.zeros((len(rows), width), np.int32)
        kept = min(width, self._ids.shape[1])
        requested[:, :kept] = self._ids[slots[rows], :kept]
        index, wanted = self._device.upload_all(rows, requested)
        part = logits.index_select(0, index)
        part = part.masked_fill_(~part.isfinite(), -torch.inf)
        scores = part.gather(1, wanted.long()) - part.logsumexp(1, keepdim=True)
        scores = scores.nan_to_num_(nan=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB)
        more = (0, width - values.shape[1])
        values = torch.nn.functional.pad(values, more, value=LEAST_LOGPROB)
        ids = torch.nn.functional.pad(ids, more)
        return values.index_copy(0, index, scores), ids.index_copy(0, index, wanted)

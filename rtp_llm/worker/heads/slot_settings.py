# SPDX-License-Identifier: Apache-2.0
"""Sampling settings by slot: written once when a sequence is added, gathered each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.device import Device

_NUM_FLOATS = 6
_NUM_INTS = 2


class RowSettings(NamedTuple):
    """One value per row: float32 [R], except top_k and ngram_size int32 [R], seeds int64 [R]."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    top_k: Tensor
    ngram_size: Tensor
    seeds: Tensor


class SlotSettings:
    """The settings of all slots, on the host: writing them does not involve the device."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._upload_all = device.upload_all
        self._floats = np.zeros((_NUM_FLOATS, num_slots), np.float32)
        self._ints = np.zeros((_NUM_INTS, num_slots), np.int32)
        self._seeds = np.zeros(num_slots, np.int64)
        place = device.torch_device
        neutral = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], device=place)
        ints = torch.zeros(_NUM_INTS, num_slots, dtype=torch.int32, device=place)
        seeds = torch.zeros(num_slots, dtype=torch.int64, device=place)
        self._greedy = RowSettings._make(
            [*neutral[:, None].repeat(1, num_slots).unbind(0), *ints.unbind(0), seeds]
        )
        self._greedy_rows = self._greedy

    def put(self, slots: Sequence[int], params: SamplingParams, seeds: Sequence[int]) -> None:
        """Write a request's settings under the slots of its sequences, each with its own seed."""
        self._floats[:, slots] = np.array(
            [
                [0.0 if params.greedy else params.temperature],
                [params.top_p],
                [params.min_p],
                [params.repetition_penalty],
                [params.presence_penalty],
                [params.frequency_penalty],
            ],
            np.float32,
        )
        self._ints[:, slots] = [[params.top_k], [params.no_repeat_ngram_size]]
        self._seeds[slots] = seeds

    def copy(self, source: int, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Give ``slots`` the settings of slot ``source``, each with its own seed."""
        self._floats[:, slots] = self._floats[:, [source]]
        self._ints[:, slots] = self._ints[:, [source]]
        self._seeds[slots] = seeds

    def gather(
        self, slots: NDArray[np.int32], *others: NDArray[Any]
    ) -> tuple[RowSettings, list[Tensor]]:
        """The settings of ``slots`` [R], and ``others`` with them: one copy for everything."""
        floats, ints, seeds, *rest = self._upload_all(
            np.take(self._floats, slots, 1),
            np.take(self._ints, slots, 1),
            self._seeds[slots],
            *others,
        )
        return RowSettings._make([*floats.unbind(0), *ints.unbind(0), seeds]), rest

    def greedy(self, num_rows: int) -> RowSettings:
        """The settings of rows that all take the arg max; nothing is copied."""
        if len(self._greedy_rows.seeds) != num_rows:
            self._greedy_rows = RowSettings._make([column[:num_rows] for column in self._greedy])
        return self._greedy_rows

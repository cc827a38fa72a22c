"""Sampling settings by slot: written once when a sequence is added, gathered each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.device import Device

_NUM_FLOATS = 6
_NUM_INTS = 2


class RowSettings(NamedTuple):
    """One value for each row: float32 [R], but top_k and ngram_size int32 [R], seeds int64 [R]."""

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
    """The settings of all slots as three tensors on the device."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._upload = device.upload
        place = device.torch_device
        self._floats = torch.zeros(_NUM_FLOATS, num_slots, device=place)
        self._ints = torch.zeros(_NUM_INTS, num_slots, dtype=torch.int32, device=place)
        self._seeds = torch.zeros(num_slots, dtype=torch.int64, device=place)
        neutral = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], device=place)
        self._greedy = RowSettings._make(
            [
                *neutral[:, None].repeat(1, num_slots).unbind(0),
                *torch.zeros_like(self._ints).unbind(0),
                torch.zeros_like(self._seeds),
            ]
        )
        self._greedy_rows = self._greedy

    def put(self, slots: Sequence[int], params: SamplingParams, seeds: Sequence[int]) -> None:
        """Write a request's settings under the slots of its sequences, each with its own seed."""
        floats = (
            0.0 if params.greedy else params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        index = self._upload(np.array(slots, np.int64))
        self._floats[:, index] = self._upload(np.array(floats, np.float32))[:, None]
        ints = (params.top_k, params.no_repeat_ngram_size)
        self._ints[:, index] = self._upload(np.array(ints, np.int32))[:, None]
        self._seeds[index] = self._upload(np.array(seeds, np.int64))

    def gather(self, slots: NDArray[np.int32]) -> RowSettings:
        """The settings of ``slots`` [R]."""
        index = self._upload(slots)
        return RowSettings._make(
            [
                *self._floats.index_select(1, index).unbind(0),
                *self._ints.index_select(1, index).unbind(0),
                self._seeds.index_select(0, index),
            ]
        )

    def greedy(self, num_rows: int) -> RowSettings:
        """The settings of rows that all take the arg max; nothing is gathered."""
        if len(self._greedy_rows.seeds) != num_rows:
            self._greedy_rows = RowSettings._make([column[:num_rows] for column in self._greedy])
        return self._greedy_rows

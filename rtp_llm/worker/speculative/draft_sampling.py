# SPDX-License-Identifier: Apache-2.0
"""Drafts that are sampled, and what they were sampled from: rejection sampling verifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.rejection import DRAFT_STEPS

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.models.drafts.draft_head import DraftModule
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences

_LOGIT_BYTES = 4


def draft_logits_bytes(max_rows: int, draft_vocab_size: int) -> int:
    """What `DraftSampling` keeps on the device."""
    return max_rows * draft_vocab_size * _LOGIT_BYTES


class DraftSampling:
    """Samples drafts at the temperature of their sequences, without filters; greedy ones take the
    arg max.

    The random number is that of (seed, position of the draft), so that neither the batch nor the
    steps before matter. What a step's drafts were sampled from stays until the next step's: float32
    [max_rows, draft vocabulary] at one place, where graphs write it, too. Rounded to 16 bits it
    would be half, and the drafts would have to be sampled from what is rounded.
    """

    def __init__(
        self,
        head: DraftModule,
        vocab_sizes: tuple[int, int],
        num_slots: int,
        max_rows: int,
        device: Device,
    ) -> None:
        """``vocab_sizes``: the draft head's, and the model's."""
        place, (own, vocab_size) = device.torch_device, vocab_sizes
        self._device, self.upload = device, device.upload
        self._new: list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]] = []
        # By slot; one more is that of padding, which is greedy.
        self._temperature = torch.zeros(num_slots + 1, device=place)
        self._seeds = torch.zeros(num_slots + 1, dtype=torch.int64, device=place)
        self._no_top_k = torch.zeros(max_rows, dtype=torch.int32, device=place)
        self._all, self._none = (torch.full((max_rows,), p, device=place) for p in (1.0, 0.0))
        self.logits = torch.zeros(max_rows, own, device=place)
        self.columns = head.columns(vocab_size)

    def add(self, sequences: NewSequences) -> None:
        """Sequences that the plans from now on may name."""
        slots, params = np.array(sequences.slots, np.int64), sequences.sampling
        temperature = 0.0 if params.greedy else params.temperature
        temperatures = np.full(len(slots), temperature, np.float32)
        self._new.append((slots, temperatures, np.array(sequences.seeds, np.int64)))

    def fork(self, forked: ForkedSequences) -> None:
        """Copy the settings of a sequence to those that continue it, except for their seeds."""
        self.begin()
        numbers = np.array(forked.slots, np.int64), np.array(forked.seeds, np.int64)
        where, seeds = self._device.upload_all(*numbers)
        of_source = self._temperature[[forked.source_slot] * len(where)]
        self._temperature.index_copy_(0, where, of_source)
        self._seeds.index_copy_(0, where, seeds)

    def begin(self) -> None:
        """Before a step drafts, or the graph that does: the settings of new sequences."""
        for slots, temperatures, seeds in self._new:
            where, hot, keys = self._device.upload_all(slots, temperatures, seeds)
            self._temperature.index_copy_(0, where, hot)
            self._seeds.index_copy_(0, where, keys)
        self._new.clear()

    def sample(self, logits: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Choices int32 [B] from ``logits`` float32 [B, draft vocabulary] for ``positions`` [B] of
        the sequences in ``slots`` [B]."""
        count = len(slots)
        tokens, _ = ops.sample(
            logits,
            self._temperature.index_select(0, slots),
            self._no_top_k[:count],
            self._all[:count],
            self._none[:count],
            self._seeds.index_select(0, slots),
            positions.long() + DRAFT_STEPS,
        )
        return tokens

    def keep(self, logits: Tensor, rows: Tensor) -> None:
        """Keep the ``logits`` [B, ...] from which the drafts after ``rows`` int64 [B] were
        sampled."""
        self.logits.index_copy_(0, rows, logits)

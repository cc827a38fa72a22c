# SPDX-License-Identifier: Apache-2.0
"""The pooling head: one vector from a prompt's hidden states, if requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device, Download
    from rtp_llm.worker.plan.step_plan import HeadPlan


@dataclass(frozen=True)
class Pooled:
    """``values`` float32 [C]: the mean of a prompt's hidden states after the last norm."""

    sequence: int
    values: NDArray[np.float32]


@dataclass
class _Wish:
    length: int
    total: Tensor | None = None  # float32 [C], of the tokens so far
    pooled: bool = False  # to the prompt's end; the vector may still be on its way


@dataclass(frozen=True)
class PoolPart:
    """The vector of one prompt on its way to the host."""

    sequence: int
    values: Download


class PoolHead:
    """Averages hidden states as they pass through steps, chunk by chunk, in float32.

    It needs all of them: prompts to be pooled do not read the prefix cache. After a preemption a
    prompt starts over.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._wishes: dict[int, _Wish] = {}

    def add(self, sequence: int, length: int) -> None:
        """Pool the prompt of ``length`` tokens of a sequence."""
        self._wishes[sequence] = _Wish(length)

    def remove(self, sequence: int) -> None:
        """Forget a sequence that was aborted."""
        self._wishes.pop(sequence, None)

    def submit(self, hidden: Tensor, plan: HeadPlan) -> list[PoolPart]:
        """The parts of prompts that end in the hidden states [T, C] of this step; never waits."""
        if not self._wishes:
            return []
        parts = []
        for row in np.flatnonzero(np.isin(plan.seq_ids, list(self._wishes))).tolist():
            sequence = int(plan.seq_ids[row])
            wish = self._wishes[sequence]
            if wish.pooled:  # and decoding, or computed again after a preemption
                continue
            begin, end = plan.cu_seqlens_q[row : row + 2].tolist()
            first = int(plan.positions[begin])
            total = hidden[begin:end].sum(0, dtype=torch.float32)
            wish.total = total if wish.total is None or first == 0 else wish.total + total
            if first + end - begin == wish.length:
                values = self._device.start_download(wish.total / wish.length)
                parts.append(PoolPart(sequence, values))
                wish.total, wish.pooled = None, True
        return parts

    def read(self, parts: Sequence[PoolPart]) -> tuple[list[Pooled], list[frozenset[int]]]:
        """The vectors, except of sequences aborted in the meantime, and one set for each sequence
        with NaN or infinity in its hidden states; waits for the device."""
        found, broken = [], []
        for part in parts:
            (values,) = part.values.read()
            if self._wishes.pop(part.sequence, None) is None:
                continue
            if np.isfinite(values).all():
                found.append(Pooled(part.sequence, values))
            else:
                broken.append(frozenset([part.sequence]))
        return found, broken

# SPDX-License-Identifier: Apache-2.0
"""Corrects a plan that assumed all drafts to be accepted, once it is on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch


@dataclass(frozen=True)
class Correction:
    """How many drafts of the previous step were rejected: only the device knows the numbers, the
    host knows where they are.

    The plan's sequences are shorter than it says by these numbers. ``rejected`` int32 [N] is on the
    device; ``of_sequence`` int32 [B] and ``of_row`` int32 [R] index it for sequences and rows.
    """

    rejected: Tensor
    of_sequence: NDArray[np.int32]
    of_row: NDArray[np.int32]

    def apply(self, batch: ForwardBatch, places: Tensor, block_size: int) -> ForwardBatch:
        """Return the plan's batch with corrected positions, lengths and slots.

        ``places`` int32 [B], on the device, is the ``of_sequence`` of its sequences.
        """
        assert batch.host is not None, "made from a plan"
        tabled = [group for group, slots in enumerate(batch.slot_mapping) if len(slots)]
        positions, seq_lens = batch.positions.clone(), batch.seq_lens.clone()
        slots = torch.stack([batch.slot_mapping[group] for group in tabled])
        tables = torch.stack([batch.block_table[group] for group in tabled])
        ops.correct_positions(
            positions,
            seq_lens,
            slots,
            tables,
            batch.cu_seqlens_q,
            self.rejected,
            places,
            block_size,
        )
        right = list(batch.slot_mapping)
        for group, new in zip(tabled, slots, strict=True):
            right[group] = new
        return replace(
            batch,
            positions=positions,
            seq_lens=seq_lens,
            slot_mapping=tuple(right),
            host=replace(batch.host, exact=False),
        )

"""What a plan that took drafts for right has to be corrected by, once it is on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch


@dataclass(frozen=True)
class Correction:
    """How many drafts of the step before were rejected, on the device, which alone knows it.

    By so much are the plan's sequences shorter than it says: of_sequence int32 [B], of_token int32
    [T], of_row int64 [R]. sequence int64 [T] is that of each token.
    """

    of_sequence: Tensor
    of_token: Tensor
    of_row: Tensor
    sequence: Tensor

    def apply(self, batch: ForwardBatch, block_size: int) -> ForwardBatch:
        """The plan's batch with the positions, lengths and slots that are right."""
        assert batch.host is not None, "made from a plan"
        positions = batch.positions - self.of_token
        slots = tuple(
            slots_at(positions, self.sequence, table, block_size) if len(mapping) else mapping
            for mapping, table in zip(batch.slot_mapping, batch.block_table, strict=True)
        )
        return replace(
            batch,
            positions=positions,
            seq_lens=batch.seq_lens - self.of_sequence,
            slot_mapping=slots,
            host=replace(batch.host, exact=False),
        )


def slots_at(positions: Tensor, sequence: Tensor, table: Tensor, block_size: int) -> Tensor:
    """Slots int32 of tokens at ``positions`` of the sequences that are rows of ``table`` [B, M]."""
    return table[sequence, positions // block_size] * block_size + positions % block_size

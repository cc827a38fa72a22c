# SPDX-License-Identifier: Apache-2.0
"""Block tables of beams follow their parents on the device, before the host knows who these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rtp_llm import ops

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch
    from rtp_llm.worker.cache.kv_cache import KVCache


@dataclass(frozen=True)
class BeamOrder:
    """How beams of a step go on, on the device: the arguments of `ops.order_beams`."""

    sequences: Tensor
    parents: Tensor
    cu_beams: Tensor

    def apply(self, batch: ForwardBatch, cache: KVCache) -> None:
        """Order the tables and slots of ``batch`` in place, and copy the last blocks that several
        beams go on from."""
        beams = self.sequences, self.parents, self.cu_beams
        places = zip(batch.block_table, batch.slot_mapping, strict=True)
        for group, (table, slots) in enumerate(places):
            pairs = ops.order_beams(table, slots, batch.positions, *beams, cache.block_size)
            cache.copy_forked(group, pairs)

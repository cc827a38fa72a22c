# SPDX-License-Identifier: Apache-2.0
"""Block tables of beams follow their parents on the device, before the host knows who these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtp_llm.worker.cache.kv_cache import KVCache


@dataclass(frozen=True)
class BeamOrder:
    """N beams of a step. ``numbers`` int32 [4, N]: their sequences in the step, their places in
    ``parents``, the index of the block that each writes, and where in it. ``parents`` int64, on the
    device: the place of each one's parent."""

    numbers: NDArray[np.int32]
    parents: Tensor


class BeamOrderer:
    """Orders ``tables`` [B, M] and ``slots`` [T], those of a step, in each group of ``cache``."""

    def __init__(self, tables: Sequence[Tensor], slots: Sequence[Tensor], cache: KVCache) -> None:
        self._tables, self._slots, self._cache = tables, slots, cache

    def order(self, numbers: Tensor, parents: Tensor) -> None:
        """Change tables and slots in place, and copy the last blocks that several beams go on from;
        see BeamOrder. Full blocks are the parent's, the last one is what was the owner's."""
        sequences, places, last, offset = numbers.long().unbind(0)
        count = torch.arange(len(sequences), device=numbers.device)
        number_of = torch.empty_like(parents).scatter_(0, places, count)
        chosen = number_of.index_select(0, parents.index_select(0, places))
        owners = _owners(chosen, count, offset)
        last, fresh = last[:, None], offset[:, None] == 0
        for group, (table, slots) in enumerate(zip(self._tables, self._slots, strict=True)):
            own = table.index_select(0, sequences)
            target = own.gather(1, last).index_select(0, owners)
            moved = own.index_select(0, chosen)
            source = moved.gather(1, last)
            source.masked_fill_(fresh | (source == target), -1)  # nothing to copy
            moved.scatter_(1, last, target)
            table.index_copy_(0, sequences, moved)
            written = target[:, 0] * self._cache.block_size + numbers[3]
            slots.index_copy_(0, sequences, written)
            self._cache.copy_forked(group, torch.cat((source, target), 1))


def _owners(parents: Tensor, numbers: Tensor, offset: Tensor) -> Tensor:
    """Whose last block each beam gets, as LastBlockOwners of the runtime says: a parent's first
    child its parent's, others that of a beam without a child, and all their own where it is still
    empty."""
    count = len(parents)
    same = parents[:, None] == parents
    other = (same & (numbers[:, None] > numbers)).any(1)
    childless = torch.ones_like(same[0]).index_fill_(0, parents, 0)
    place = torch.where(childless, childless.cumsum(0) - 1, count)
    spare = numbers.new_zeros(count + 1).scatter_(0, place, numbers)
    given = spare.index_select(0, (other.cumsum(0) - 1).clamp_(min=0))
    owners = torch.where(other, given, parents)
    return torch.where(offset == 0, numbers, owners)

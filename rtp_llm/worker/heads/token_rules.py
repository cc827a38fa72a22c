# SPDX-License-Identifier: Apache-2.0
"""Which tokens a sequence may generate: allowed ids, and the ends of banned sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.heads.ragged_table import flat_index

if TYPE_CHECKING:
    from rtp_llm.device import Device

_BITS = 8
_ANY = -1  # padding of a shorter sequence, which matches every token


class AllowedTokens:
    """Allowed token ids by slot, as bits on the device: a step gathers the rows that have any.

    Memory is taken at the first use: ``num_slots`` x vocabulary / 8 bytes.
    """

    def __init__(self, num_slots: int, device: Device) -> None:
        self._device = device
        self._limited = np.zeros(num_slots, np.bool_)
        self._new: list[tuple[list[int], NDArray[np.int64]]] = []
        self._bits: Tensor | None = None
        self._place = torch.tensor(
            [1 << bit for bit in range(_BITS)], dtype=torch.uint8, device=device.torch_device
        )

    def put(self, slots: Sequence[int], ids: Sequence[int] | None) -> None:
        """Replace what is allowed in ``slots``; None: everything."""
        self._limited[slots] = ids is not None
        if ids is not None:
            self._new.append((list(slots), np.array(ids, np.int64)))

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Allow in ``slots`` what is allowed in slot ``source``."""
        self._limited[slots] = self._limited[source]
        if not self._limited[source]:
            return
        for waiting, _ in self._new:  # for sequences that had these slots before
            waiting[:] = [each for each in waiting if each not in slots]
        for waiting, _ in reversed(self._new):
            if source in waiting:
                waiting.extend(slots)
                return
        assert self._bits is not None
        index = self._device.upload(np.array(slots, np.int64))
        self._bits.index_copy_(0, index, self._bits[[source] * len(slots)])

    def apply(self, logits: Tensor, slots: NDArray[np.int32]) -> None:
        """Set the logits [R, vocabulary] of what is not allowed in ``slots`` [R] to -inf."""
        rows = np.flatnonzero(self._limited[slots])
        if not len(rows):
            return
        bits = self._write_new(logits.shape[1])
        index, owners = self._device.upload_all(rows, slots[rows].astype(np.int64))
        mine = bits.index_select(0, owners)
        banned = ((mine.unsqueeze(2) & self._place) == 0).flatten(1)[:, : logits.shape[1]]
        if len(rows) == len(slots):
            logits.masked_fill_(banned, -torch.inf)
            return
        part = logits.index_select(0, index).masked_fill_(banned, -torch.inf)
        logits.index_copy_(0, index, part)

    def _write_new(self, vocab_size: int) -> Tensor:
        """The bits of all slots [slots, vocabulary / 8], those put since the last step included."""
        if self._bits is None:
            shape = (len(self._limited), -(-vocab_size // _BITS))
            self._bits = torch.zeros(shape, dtype=torch.uint8, device=self._device.torch_device)
        for slots, ids in self._new:
            allowed = np.zeros(vocab_size, np.bool_)
            allowed[ids] = True
            bits = np.packbits(allowed, bitorder="little")
            index, row = self._device.upload_all(np.array(slots, np.int64), bits)
            self._bits.index_copy_(0, index, row.expand(len(slots), -1))
        self._new.clear()
        return self._bits


class BannedSequences:
    """Banned token sequences by slot: their last token must not follow the others."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._device = device
        self._counts = np.zeros(num_slots, np.int64)
        self._heads = np.empty((num_slots, 0, 0), np.int32)
        self._last = np.empty((num_slots, 0), np.int32)

    def put(self, slot: int, sequences: Sequence[Sequence[int]]) -> None:
        """Replace the sequences of ``slot``, each of two tokens or more."""
        self._counts[slot] = len(sequences)
        if not sequences:
            return
        self._widen(len(sequences), max(map(len, sequences)) - 1)
        self._heads[slot] = _ANY
        for number, sequence in enumerate(sequences):
            self._heads[slot, number, -len(sequence) + 1 :] = sequence[:-1]
            self._last[slot, number] = sequence[-1]

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Ban in ``slots`` what is banned in slot ``source``."""
        for table in (self._counts, self._heads, self._last):
            table[slots] = table[source]

    def _widen(self, count: int, length: int) -> None:
        num_slots, old_count, old_length = self._heads.shape
        count, length = max(count, old_count), max(length, old_length)
        if (count, length) == (old_count, old_length):
            return
        heads = np.full((num_slots, count, length), _ANY, np.int32)
        heads[:, :old_count, length - old_length :] = self._heads
        last = np.zeros((num_slots, count), np.int32)
        last[:, :old_count] = self._last
        self._heads, self._last = heads, last

    def apply(
        self,
        logits: Tensor,
        slots: NDArray[np.int32],
        steps: Tensor,
        tokens: Tensor,
        cu_tokens: Tensor,
    ) -> None:
        """Set the logits [R, vocabulary] of tokens that would end a sequence to -inf.

        The last ``steps`` [R] tokens of a row's history (``tokens``, bounded by ``cu_tokens``
        [R + 1]) were generated; only these count.
        """
        counts = self._counts[slots]
        if not counts.any():
            return
        rows = np.repeat(np.arange(len(slots)), counts)
        flat = flat_index(slots, counts, self._last.shape[1])
        length = self._heads.shape[2]
        row, heads, last, back = self._device.upload_all(
            rows,
            self._heads.reshape(-1, length)[flat],
            self._last.reshape(-1)[flat],
            np.arange(length, 0, -1),
        )
        known = back <= steps.index_select(0, row)[:, None]
        places = cu_tokens.index_select(0, row + 1)[:, None] - back
        previous = tokens[places.clamp_(min=0)]
        follows = ((heads == _ANY) | (known & (previous == heads))).all(1)
        values = torch.where(follows, -torch.inf, 0.0)
        ops.add_logit_bias(logits, row.int(), last, values)

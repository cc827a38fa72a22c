# SPDX-License-Identifier: Apache-2.0
"""The inputs of graphs: memory that stays in place, written by the host in every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.device import StagedNumbers
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.plan.arrays import StepArray, device_arrays
from rtp_llm.worker.plan.extents import Extent

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.correction import Correction
    from rtp_llm.worker.inputs.graph_embeddings import GraphEmbeddings
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens

# The first rows of what is copied; the plan's arrays follow, then the slots of groups. _REJECTED:
# where each sequence's correction is; _PREVIOUS: the token before those of each sequence.
_SLOTS, _REJECTED, _PREVIOUS, _FIRST_ARRAY = range(4)


class GraphInputs:
    """Room for a batch of size ``most``; smaller batches use the first part of it.

    Unused places are padding: sequences without tokens or keys, and tokens that belong to no
    sequence and are not written to the cache. The last block of a sequence is repeated after its
    end, so that kernels may load past it. Blocks before a window are absent, as in eager steps: in
    any other block, keys with a weight of zero might be NaN.
    """

    def __init__(
        self,
        cache: KVCache,
        device: Device,
        most: GraphSize,
        max_model_len: int,
        block_size: int,
        sampled: SampledTokens | None = None,
        padding_slot: int = 0,
        hidden: Tensor | None = None,
        arrays: Sequence[StepArray] = device_arrays(()),
        embeddings: GraphEmbeddings | None = None,
    ) -> None:
        """`max_model_len` is the longest sequence in tokens that a batch can have; `sampled` knows
        how a plan has to be corrected; `padding_slot` is the slot of padding sequences; `hidden`
        holds the input states of a pipeline stage; `arrays` are those of plans that steps read, and
        `embeddings` is memory for those of placeholders."""
        self._arrays, self._embeddings = arrays, embeddings
        self._row_of, self._first_group = _row_indexes(arrays)
        self._sampled, self._padding_slot = sampled, padding_slot
        self.max_seqlen_k, self._block_size = max_model_len, block_size
        groups, blocks = len(cache.groups), -(-max_model_len // block_size)
        self._rows, self._columns = np.arange(most.sequences), np.arange(blocks)
        self._recurrent = cache.recurrent
        self._tabled = [group for group in range(groups) if group not in cache.recurrent]
        # Groups by the rows of their slots; groups with slots are adjacent.
        self._slotted = [*self._tabled, *self._recurrent]
        # A step copies all its numbers at once: a row for each input, then the tables' used parts.
        self._first_state = self._first_group + groups
        rows = self._first_state + 2 * len(self._recurrent)
        self._shape = (rows, max(most.tokens, most.sequences) + 1)
        self._count = math.prod(self._shape)
        tables = torch.zeros(len(self._tabled), most.sequences, blocks, dtype=torch.int32)
        self._staged = StagedNumbers(device, self._count + tables.numel())
        self._numbers = self._staged.on_device[: self._count].view(self._shape)
        self._tables = tables.to(device.torch_device)
        self.whole = replace(self._views(cache, max_model_len), hidden=hidden)

    def _views(self, cache: KVCache, max_model_len: int) -> ForwardBatch:
        """What the largest step reads; groups have tables or states, and nothing of the other."""
        groups = len(cache.groups)
        table, read, write = ([self._tables[:0, 0]] * groups for _ in range(3))
        for row, group in enumerate(self._tabled):
            table[group] = self._tables[row]
        for place, group in enumerate(self._recurrent):
            read[group], write[group] = self._numbers[self._first_state + 2 * place :][:2]
        arrays: dict[str, Any] = {
            each.name: self._rows_of(self._numbers, each) for each in self._arrays
        }
        return ForwardBatch(
            **arrays,
            slot_mapping=tuple(
                self._numbers[self._first_group + self._slotted.index(group)]
                for group in range(groups)
            ),
            block_table=tuple(table),
            max_seqlen_q=1,
            max_seqlen_k=max_model_len,
            kv_cache=cache.layers,
            layer_group=cache.layer_group,
            states=cache.states,
            state_read=tuple(read),
            state_write=tuple(write),
        )

    def _rows_of(self, numbers: Any, array: StepArray) -> Any:
        """The part of ``numbers`` (a tensor or an array of all rows) that holds an array of the
        plan: [most], or [most, width]."""
        rows = numbers[self._row_of[array.name]]
        return rows if rows.ndim == 1 else rows.T

    def batch(self, size: GraphSize) -> ForwardBatch:
        """What a step of ``size`` reads."""
        whole, tokens, sequences = self.whole, size.tokens, size.sequences
        lengths = _lengths(tokens, sequences)
        arrays: dict[str, Any] = {
            each.name: getattr(whole, each.name)[: lengths[each.extent]] for each in self._arrays
        }
        if self._embeddings is not None:
            arrays["embeddings"] = self._embeddings.on_device.first(tokens)
        return replace(
            whole,
            **arrays,
            slot_mapping=tuple(slots[:tokens] for slots in whole.slot_mapping),
            block_table=tuple(table[:sequences] for table in whole.block_table),
            state_read=tuple(states[:sequences] for states in whole.state_read),
            state_write=tuple(states[:sequences] for states in whole.state_write),
            max_seqlen_q=size.longest,
            hidden=None if whole.hidden is None else whole.hidden[:tokens],
        )

    def slots(self, size: GraphSize) -> Tensor:
        """The slots of a step of ``size`` that was written with slots, int32 [B]."""
        return self._numbers[_SLOTS, : size.sequences]

    def previous(self, size: GraphSize) -> Tensor:
        """The token before the step's tokens of each sequence, as SampledTokens names it, int32
        [B]; for a step of ``size`` that was written with slots."""
        return self._numbers[_PREVIOUS, : size.sequences]

    def batch_of(self, plan: StepPlan) -> ForwardBatch:
        """The batch of ``plan``, which was written last, without padding."""
        size = GraphSize(plan.num_tokens, plan.num_seqs, plan.max_seqlen_q)
        exact = self._sampled is None or self._sampled.correction is None
        host = HostNumbers(plan.cu_seqlens_q, plan.seq_lens, plan.block_table, exact)
        return replace(self.batch(size), max_seqlen_k=plan.max_seqlen_k, host=host)

    def clear(self) -> None:
        """Clear all inputs: no sequence has a token, and nothing is written to the cache."""
        self._numbers.zero_()
        self._numbers[_SLOTS] = self._padding_slot
        self._numbers[self._first_group :] = -1
        self._numbers[self._first_state + 1 :: 2] = 0
        for each in self._arrays:
            if each.padding:
                self._rows_of(self._numbers, each).fill_(each.padding)
        if self._embeddings is not None:
            self._embeddings.clear()

    def write(
        self, batch: StepPlan, size: GraphSize, slots: NDArray[np.int32] | None = None
    ) -> None:
        """Write the numbers of ``batch`` for a step of ``size`` that holds it; never waits for the
        device.

        ``slots`` [B] of its sequences are given if the step reads them and the previous tokens.
        """
        if self._embeddings is not None:
            self._embeddings.write(batch)
        host = self._staged.begin()
        numbers = host[: self._count].reshape(self._shape)
        self._write_numbers(numbers, batch, size)
        if slots is not None:
            numbers[_SLOTS, : len(slots)] = slots
            numbers[_SLOTS, len(slots) : size.sequences] = self._padding_slot
            assert self._sampled is not None, "it drafts"
            previous = self._sampled.named_by_next(batch.previous_tokens)
            numbers[_PREVIOUS, : len(slots)] = previous
            numbers[_PREVIOUS, len(slots) : size.sequences] = 0
        correction = None if self._sampled is None else self._sampled.correction
        if correction is not None:
            numbers[_REJECTED, : batch.num_seqs] = correction.of_sequence
        self._send(host, batch)
        if correction is not None:
            self._correct(correction, batch)

    def _send(self, host: NDArray[np.int32], batch: StepPlan) -> None:
        """Copy the numbers to the device, and the used parts of the tables, if there are any."""
        tables, width = batch.block_table, 0
        if self._tabled:
            width = min(tables[0].shape[1], self._tables.shape[2])  # attention comes first
        used = (len(self._tabled), batch.num_seqs, width)
        end = self._count + math.prod(used)
        for group, part in zip(self._tabled, host[self._count : end].reshape(used), strict=True):
            np.copyto(part, tables[group][:, :width])
            self._fill_ends(part, batch.seq_lens)
        self._staged.send(end)
        if self._tabled:
            sent = self._staged.on_device[self._count : end].view(used)
            self._tables[:, : batch.num_seqs, :width].copy_(sent)

    def _correct(self, correction: Correction, batch: StepPlan) -> None:
        """Correct on the device for drafts that the plan assumed to be accepted, but which the
        previous step rejected."""
        tokens, sequences = batch.num_tokens, batch.num_seqs
        ops.correct_positions(
            self._numbers[self._row_of["positions"], :tokens],
            self._numbers[self._row_of["seq_lens"], :sequences],
            self._numbers[self._first_group :, :tokens][: len(self._tabled)],
            self._tables[:, :sequences],
            self._numbers[self._row_of["cu_seqlens_q"], : sequences + 1],
            correction.rejected,
            self._numbers[_REJECTED, :sequences],
            self._block_size,
        )

    def _fill_ends(self, table: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> None:
        """Repeat the last block of each row's sequence up to the end of the row."""
        rows, width = table.shape
        last = np.minimum((seq_lens - 1) // self._block_size, width - 1)
        start = int(last.min()) + 1
        if start == width:
            return
        last_blocks = table[self._rows[:rows], last]
        past_end = self._columns[start:width] > last[:, None]
        np.copyto(table[:, start:], last_blocks[:, None], where=past_end)

    def _write_numbers(self, numbers: NDArray[np.int32], batch: StepPlan, size: GraphSize) -> None:
        tokens, sequences = batch.num_tokens, batch.num_seqs
        ends = _lengths(size.tokens, size.sequences)
        for each in self._arrays:
            values, end = getattr(batch, each.name), ends[each.extent]
            count, padding = len(values), each.padding
            row = self._row_of[each.name]
            numbers[row, :count] = values.T
            numbers[row, count:end] = values[-1] if padding is None else padding
        for row, group in enumerate(self._slotted, self._first_group):
            slots = batch.slot_mapping[group]
            if len(slots):
                numbers[row, :tokens] = slots
            numbers[row, tokens : size.tokens] = -1
        for place, group in enumerate(self._recurrent):
            read, write = numbers[self._first_state + 2 * place :][:2]
            read[:sequences], read[sequences : size.sequences] = batch.state_read[group], -1
            write[:sequences], write[sequences : size.sequences] = batch.state_write[group], 0


def _lengths(tokens: int, sequences: int) -> dict[Extent, int]:
    return {
        Extent.TOKENS: tokens,
        Extent.TOKEN_AXES: tokens,
        Extent.SEQUENCES: sequences,
        Extent.SEQUENCE_STARTS: sequences + 1,
    }


def _row_indexes(arrays: Sequence[StepArray]) -> tuple[dict[str, Any], int]:
    """The row of each array, or its rows, one for each axis; and the first row after them all."""
    *starts, end = accumulate((each.extent.width for each in arrays), initial=_FIRST_ARRAY)
    indexes: dict[str, Any] = {
        each.name: start if each.extent.width == 1 else slice(start, start + each.extent.width)
        for each, start in zip(arrays, starts, strict=True)
    }
    return indexes, end

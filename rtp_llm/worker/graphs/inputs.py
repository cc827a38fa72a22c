"""The inputs of recorded steps: memory that stays in place, written by the host in every step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.device import StagedNumbers
from rtp_llm.worker.graphs.capture_sizes import GraphSize

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.plan import StepPlan


class GraphInputs:
    """Room for a batch of ``most``; smaller ones are its first parts.

    Places that a batch leaves over hold nothing: sequences without a token and without keys, and
    tokens of no sequence, which are not written to the cache.
    """

    def __init__(
        self,
        cache: KVCache,
        device: Device,
        most: GraphSize,
        max_model_len: int,
        block_size: int,
    ) -> None:
        """`max_model_len` in tokens is the longest sequence that a batch can have."""
        groups, blocks = len(cache.groups), -(-max_model_len // block_size)
        # A step copies all its numbers at once: a row for each input, then the tables' used parts.
        self._shape = (4 + groups, max(most.tokens, most.sequences) + 1)
        self._count = math.prod(self._shape)
        self._staged = StagedNumbers(device, self._count + groups * most.sequences * blocks)
        self._numbers = self._staged.on_device[: self._count].view(self._shape)
        tables = torch.full((groups, most.sequences, blocks), -1, dtype=torch.int32)
        self._tables = tables.to(device.torch_device)
        self._whole = ForwardBatch(
            token_ids=self._numbers[1],
            positions=self._numbers[2],
            cu_seqlens_q=self._numbers[0],
            seq_lens=self._numbers[3],
            slot_mapping=tuple(self._numbers[4:]),
            block_table=tuple(self._tables),
            max_seqlen_q=1,
            max_seqlen_k=max_model_len,
            kv_cache=cache.layers,
            layer_group=cache.layer_group,
        )

    def batch(self, size: GraphSize) -> ForwardBatch:
        """What a step of ``size`` reads."""
        whole, tokens, sequences = self._whole, size.tokens, size.sequences
        return replace(
            whole,
            token_ids=whole.token_ids[:tokens],
            positions=whole.positions[:tokens],
            cu_seqlens_q=whole.cu_seqlens_q[: sequences + 1],
            seq_lens=whole.seq_lens[:sequences],
            slot_mapping=tuple(slots[:tokens] for slots in whole.slot_mapping),
            block_table=tuple(table[:sequences] for table in whole.block_table),
            max_seqlen_q=size.longest,
        )

    def clear(self) -> None:
        """No sequence has a token, and nothing is written to the cache."""
        self._numbers.zero_()
        self._numbers[4:] = -1

    def write(self, batch: StepPlan, size: GraphSize) -> None:
        """The numbers of ``batch``, for a step of ``size`` that holds it; waits for no device."""
        host = self._staged.begin()
        self._write_numbers(host[: self._count].reshape(self._shape), batch, size)
        width = min(batch.block_table[0].shape[1], self._tables.shape[2])
        used = (len(batch.block_table), batch.num_seqs, width)
        end = self._count + math.prod(used)
        for table, part in zip(
            batch.block_table, host[self._count : end].reshape(used), strict=True
        ):
            part[:] = table[:, :width]
        self._staged.send(end)
        tables = self._staged.on_device[self._count : end].view(used)
        self._tables[:, : batch.num_seqs, :width].copy_(tables)

    @staticmethod
    def _write_numbers(numbers: NDArray[np.int32], batch: StepPlan, size: GraphSize) -> None:
        tokens, sequences = batch.num_tokens, batch.num_seqs
        numbers[0, : sequences + 1] = batch.cu_seqlens_q
        numbers[0, sequences + 1 : size.sequences + 1] = tokens
        numbers[3, :sequences] = batch.seq_lens
        numbers[3, sequences : size.sequences] = 0
        for row, values in enumerate((batch.token_ids, batch.positions), 1):
            numbers[row, :tokens] = values
            numbers[row, tokens : size.tokens] = 0
        for row, slots in enumerate(batch.slot_mapping, 4):
            numbers[row, :tokens] = slots
            numbers[row, tokens : size.tokens] = -1

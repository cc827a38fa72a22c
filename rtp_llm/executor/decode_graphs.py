"""Decode steps as recorded graphs: one for each size of batch, replayed with one launch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.device import StagedNumbers

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch
    from rtp_llm.device import Device
    from rtp_llm.device.streams import Graph
    from rtp_llm.executor.kv_cache import KVCache

_logger = logging.getLogger("rtp_llm.engine")
_WARM_UPS = 2  # what a kernel compiles or allocates when it is first called is not for a graph


def graph_sizes(most: int) -> list[int]:
    """Batch sizes to record, ascending: 1, 2, 4, 8, 16, 24, 32, then every 16, and `most`."""
    sizes = {1, 2, 4, 8, 16, 24, 32, *range(48, most, 16), most}
    return sorted(size for size in sizes if size <= most)


@dataclass(frozen=True)
class _Recorded:
    graph: Graph
    hidden: Tensor


class DecodeGraphs:
    """Replays of the model on batches in which every sequence has one token.

    A batch runs in the smallest recorded size that holds it. The places that are left over are
    sequences without a token: they read and write no cache.
    """

    def __init__(
        self,
        model: Callable[[ForwardBatch], Tensor],
        cache: KVCache,
        device: Device,
        max_batch: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        """Allocates the inputs; `record` makes the graphs.

        `max_model_len` in tokens is the longest sequence that a replay can have.
        """
        self._model = model
        self._device = device
        self._sizes = graph_sizes(max_batch)
        self._recorded: dict[int, _Recorded] = {}
        groups, blocks = len(cache.groups), -(-max_model_len // block_size)
        # A step copies all its numbers at once: a row for each input, then the tables' used parts.
        self._shape = (4 + groups, max_batch + 1)
        self._count = math.prod(self._shape)
        self._staged = StagedNumbers(device, self._count + groups * max_batch * blocks)
        self._numbers = self._staged.on_device[: self._count].view(self._shape)
        tables = torch.full((groups, max_batch, blocks), -1, dtype=torch.int32)
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

    def record(self) -> None:
        """Record all sizes, the largest first, so that the others fit into its memory."""
        began, before = time.monotonic(), self._device.memory_used()
        self._numbers[4:] = -1
        stream = self._device.new_stream()
        pool: object = None
        for size in reversed(self._sizes):
            batch = self._inputs(size)
            stream.wait_stream(self._device.current_stream())
            with self._device.use_stream(stream):
                for _ in range(_WARM_UPS):
                    self._model(batch)
            self._device.synchronize()
            graph = self._device.new_graph(pool)
            with graph.capture(stream):
                hidden = self._model(batch)
            self._recorded[size] = _Recorded(graph, hidden)
            pool = graph.pool
        _logger.info(
            "%d decode graphs for up to %d sequences: %.1f s, %.0f MiB",
            len(self._sizes),
            self._sizes[-1],
            time.monotonic() - began,
            (self._device.memory_used() - before) / 2**20,
        )

    def takes(self, batch: Batch) -> bool:
        """Whether `replay` can run the batch: one token each, and no more than were recorded."""
        return batch.num_tokens == batch.num_seqs <= self._sizes[-1]

    def replay(self, batch: Batch) -> Tensor:
        """Hidden states [B, hidden] of the batch's tokens, valid until the next replay."""
        count = batch.num_seqs
        size = next(size for size in self._sizes if size >= count)
        host = self._staged.begin()
        self._write_numbers(host[: self._count].reshape(self._shape), batch, size)
        width = min(batch.block_table[0].shape[1], self._tables.shape[2])
        used = (len(batch.block_table), count, width)
        end = self._count + math.prod(used)
        for table, part in zip(
            batch.block_table, host[self._count : end].reshape(used), strict=True
        ):
            part[:] = table[:, :width]
        self._staged.send(end)
        tables = self._staged.on_device[self._count : end].view(used)
        self._tables[:, :count, :width].copy_(tables)
        recorded = self._recorded[size]
        recorded.graph.replay()
        return recorded.hidden[:count]

    def _write_numbers(self, numbers: NDArray[np.int32], batch: Batch, size: int) -> None:
        """Every input of the graph for ``size``; places without a sequence have no token."""
        count = batch.num_seqs
        numbers[0, : count + 1] = batch.cu_seqlens_q
        numbers[0, count + 1 : size + 1] = count
        for row, values in enumerate((batch.token_ids, batch.positions, batch.seq_lens), 1):
            numbers[row, :count] = values
            numbers[row, count:size] = 0
        for row, slots in enumerate(batch.slot_mapping, 4):
            numbers[row, :count] = slots
            numbers[row, count:size] = -1

    def _inputs(self, size: int) -> ForwardBatch:
        whole = self._whole
        return replace(
            whole,
            token_ids=whole.token_ids[:size],
            positions=whole.positions[:size],
            cu_seqlens_q=whole.cu_seqlens_q[: size + 1],
            seq_lens=whole.seq_lens[:size],
            slot_mapping=tuple(slots[:size] for slots in whole.slot_mapping),
            block_table=tuple(table[:size] for table in whole.block_table),
        )

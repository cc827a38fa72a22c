# SPDX-License-Identifier: Apache-2.0
"""Ranks that share one GPU, each with its own stream, buffers and few blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.ops.collective.rank_buffers import ABSENT, STATE_WORDS, buffer_words

_BLOCKS = 4  # per rank: blocks of all ranks and of the calls queued after them must run at once
_TIMEOUT = 60.0
_SMALL_BYTES, _LARGE_BYTES = 1 << 20, 32 << 20

Work = Callable[[int], None]  # of a rank
_CUDA: Any = torch.cuda  # whose classes have no types


def _reserve() -> None:
    """Reserve memory in PyTorch's allocator, in small and large pieces, for the current stream.

    Allocating from the driver would wait for running kernels, which wait for other ranks.
    """
    small = [torch.empty(_SMALL_BYTES, dtype=torch.uint8) for _ in range(64)]
    large = [torch.empty(_LARGE_BYTES, dtype=torch.uint8) for _ in range(4)]
    del small, large


class StreamRanks:
    """`buffers` and `states` [size, ...] of the operators; `abort_word`: what ends their waits."""

    def __init__(self, size: int, capacity: int) -> None:
        words = buffer_words(size, capacity)
        self.size, self.capacity = size, capacity
        self.streams = [_CUDA.Stream() for _ in range(size)]
        self.abort_word = torch.zeros(1, dtype=torch.int32, device="cpu").pin_memory()
        self._memory = [torch.full((words,), ABSENT, dtype=torch.int32) for _ in range(size)]
        addresses = [each.data_ptr() for each in [*self._memory, self.abort_word]]
        self.buffers = torch.tensor(addresses, dtype=torch.int64)
        self.states = torch.zeros(size, STATE_WORDS, dtype=torch.int32)
        for stream in self.streams:
            with _CUDA.stream(stream):
                _reserve()

    def among(self, rank: int) -> tuple[Tensor, Tensor, int, int, int]:
        """The trailing arguments of a rank's operator calls."""
        return self.buffers, self.states[rank], rank, self.capacity, _BLOCKS

    def start(self, work: Work, ranks: range | None = None) -> None:
        """Enqueue each rank's work on its stream; inputs must be ready."""
        torch.cuda.synchronize()
        for rank in ranks or range(self.size):
            with torch.cuda.stream(self.streams[rank]):
                work(rank)

    def done(self, seconds: float = _TIMEOUT) -> bool:
        """Whether all streams finish within `seconds`."""
        end = time.monotonic() + seconds
        while not all(stream.query() for stream in self.streams):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def run(self, work: Work, ranks: range | None = None) -> None:
        """Run the work to its end; fails if it does not finish in time."""
        self.start(work, ranks)
        if not self.done():
            self.abort_word.fill_(1)
            torch.cuda.synchronize()
            pytest.fail("ranks wait for each other")

    def captured(self, step: Work) -> Any:
        """A graph with a branch for each rank: one launch starts them all."""
        self.run(step)  # kernels are loaded before anybody waits
        graph, main = _CUDA.CUDAGraph(), _CUDA.Stream()
        with torch.cuda.graph(graph, stream=main):
            for rank, stream in enumerate(self.streams):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    step(rank)
            for stream in self.streams:
                main.wait_stream(stream)
        return graph

# SPDX-License-Identifier: Apache-2.0
"""Pinned memory goes round, and never while somebody still reads it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import torch

from rtp_llm.attention import CacheGroups, FullAttentionSpec
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.cache.transfer.layout import CacheLayout
from rtp_llm.worker.cache.transfer.send_buffers import PinnedBuffers, StagedSendBuffer

if TYPE_CHECKING:
    from rtp_llm.worker.cache.transfer.interfaces import BlockStore


class NoCounters:
    """Counts nothing."""

    def add(self, **amounts: float) -> None:
        """See Counters."""


class CountingDevice(CpuDevice):
    """Knows how much was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def pinned_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        memory = super().pinned_empty(shape, dtype)
        self.sizes.append(memory.nbytes)
        return memory


def test_a_piece_is_given_out_again_when_it_is_gone() -> None:
    device = CountingDevice()
    pieces = PinnedBuffers(device)
    first = pieces.take((2, 3, 100), torch.int64)
    second = pieces.take((2, 3, 100), torch.int64)
    assert first.shape == (2, 3, 100) and first.dtype == torch.int64
    assert first.data_ptr() != second.data_ptr() and device.sizes == [8192, 8192]
    address = first.data_ptr()
    del first
    third = pieces.take((1, 5, 1000), torch.uint8)  # as large when rounded up
    assert third.data_ptr() == address and len(device.sizes) == 2
    del third
    assert pieces.take((1, 1, 8193), torch.uint8).nbytes == 8193
    assert device.sizes == [8192, 8192, 16384]


def test_pieces_of_two_steps_are_taken_at_the_start_as_far_as_the_limit_goes() -> None:
    groups = CacheGroups.of([FullAttentionSpec(1, 8, torch.float32)] * 3)  # 256 bytes a block
    cache = KVCache(groups, num_blocks=(6,), block_size=4, device=torch.device("cpu"))
    layout = CacheLayout(cache)
    for limit, pieces in ((1 << 20, 6), (2048, 4), (511, 0)):
        device = CountingDevice()
        send_buffer = StagedSendBuffer(
            cast("BlockStore", None), layout, NoCounters(), cache, device
        )
        send_buffer.prepare(tokens=5, limit=limit)
        assert device.sizes == [512] * pieces
        if pieces:
            send_buffer._pieces.take((2, 2, 16), torch.int64)
            assert len(device.sizes) == pieces


def test_threads_never_share_a_piece() -> None:
    pieces = PinnedBuffers(CpuDevice())
    wrong = []

    def work(mark: int) -> None:
        for _ in range(300):
            mine = pieces.take((64,), torch.int64)
            mine.fill_(mark)
            if not bool((mine == mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""Pinned memory goes round, and never while somebody still reads it."""

from __future__ import annotations

import threading

import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.disagg.outlets import PinnedPieces


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
    pieces = PinnedPieces(device)
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


def test_threads_never_share_a_piece() -> None:
    pieces = PinnedPieces(CpuDevice())
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

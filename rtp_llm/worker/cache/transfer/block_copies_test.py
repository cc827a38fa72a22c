# SPDX-License-Identifier: Apache-2.0
"""Blocks arrive whole and in order, whether they lie in runs or here and there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rtp_llm.device import Device
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.testing.usable_gpu import usable_gpu
from rtp_llm.worker.cache.transfer.block_copies import BlockCopies, runs_of, words_of

DEVICE: Device = usable_gpu() or CpuDevice()
LONG = 1 << 22  # bytes of a block that make any run worth a copy
CASES = {
    "none": [],
    "one": [7],
    "a run": [3, 4, 5, 6],
    "two runs": [8, 9, 0, 1, 2],
    "backwards": [6, 5, 4],
    "scattered": [1, 9, 3, 8],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32], ids=str)
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("block_bytes", [None, LONG])
@pytest.mark.parametrize("blocks", CASES.values(), ids=CASES)
def test_there_and_back(
    blocks: list[int], block_bytes: int | None, planes: int, dtype: torch.dtype
) -> None:
    layer = torch.randn(planes, 10, 4, 3).to(dtype).to(DEVICE.torch_device)
    memory = words_of(layer)
    ids = np.array(blocks, np.int64)
    copies = BlockCopies(DEVICE, ids, block_bytes or memory[0, 0].nbytes)
    host = DEVICE.pinned_empty((planes, len(blocks), memory.shape[2]), memory.dtype)
    copies.to_host(memory, host)
    DEVICE.synchronize()
    assert torch.equal(host, memory.cpu()[:, blocks])
    target = torch.zeros_like(memory)
    copies.to_device(host, target)
    expected = torch.zeros_like(memory)
    expected[:, blocks] = memory[:, blocks]
    assert torch.equal(target, expected)


def test_runs_cover_each_block_once() -> None:
    rng = np.random.default_rng()
    for _ in range(50):
        starts = rng.permutation(20)[: rng.integers(0, 8)] * 5
        pieces = [np.arange(start, start + rng.integers(1, 6)) for start in starts]
        blocks: NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *pieces])
        every = np.arange(100)
        runs = runs_of(blocks)
        assert all(np.array_equal(blocks[ours], every[theirs]) for ours, theirs in runs)
        assert [run.start for run, _ in runs[1:]] == [run.stop for run, _ in runs[:-1]]
        assert sum(run.stop - run.start for run, _ in runs) == len(blocks)
        assert len(runs) <= len(pieces)


def test_short_runs_are_gathered_and_long_ones_are_not() -> None:
    blocks = np.array([1, 2, 5, 6])
    assert BlockCopies(DEVICE, blocks, 256)._ids is not None
    assert BlockCopies(DEVICE, blocks, LONG)._ids is None
    assert BlockCopies(DEVICE, np.arange(3), 256)._ids is None

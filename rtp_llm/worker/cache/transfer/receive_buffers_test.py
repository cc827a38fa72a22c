# SPDX-License-Identifier: Apache-2.0
"""Blocks staged in host memory reach the cache, and asking for that waits for nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtp_llm.attention import CacheGroups, FullAttentionSpec, SlidingWindowSpec
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.cache.transfer.block_copies import words_of
from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout
from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool
from rtp_llm.worker.cache.transfer.receive_buffers import StagedReceiveBuffer


class NoCopiesByHand(CpuDevice):
    """A device to which only its uploads lead: other copies wait for what it has to do."""

    def __init__(self) -> None:
        super().__init__()
        del self.torch_device
        self.uploads = 0

    def upload(self, array: NDArray[Any]) -> torch.Tensor:
        self.uploads += 1
        return super().upload(array)


def test_a_receive_buffer_is_made_without_waiting_and_fills_its_blocks() -> None:
    full = FullAttentionSpec(1, 8, torch.float32)
    window = SlidingWindowSpec(1, 8, torch.float32, window=4)
    groups = CacheGroups.of([full, window, full])
    cache = KVCache(groups, num_blocks=(6, 6), block_size=4, device=torch.device("cpu"))
    layers = [layer.zero_() for layer in cache.layers]
    layout = CacheLayout(cache)
    parts = [
        BlockPart(np.arange(len(blocks)), np.arange(len(blocks)), np.array(blocks))
        for blocks in ([5, 2], [3])
    ]
    device = NoCopiesByHand()
    receive_buffer = StagedReceiveBuffer(layout, parts, cache, device, PinnedPool(layout, 1 << 20))
    assert device.uploads == 1, "one for the layers of a group; a run needs none"
    for host, _, _ in receive_buffer._targets.values():
        host.fill_(7)
    receive_buffer.arrived(range(3))
    receive_buffer.finish()
    for layer, blocks in zip(layers, ([2, 5], [3], [2, 5]), strict=True):
        words = words_of(layer)
        assert (words[:, blocks] == 7).all()
        assert words.any(dim=2).any(dim=0).nonzero().flatten().tolist() == blocks

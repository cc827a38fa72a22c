# SPDX-License-Identifier: Apache-2.0
"""What an engine's capture session exchanges: the symmetric sums of all ranks, or of none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rtp_llm.device import DeviceError
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.peer_memory import PeerMemory
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.distributed.world import World
from rtp_llm.engine.ranks.tensor_ranks import TensorRanks, _capture_sums_apart
from rtp_llm.testing.ranks import run_ranks


class Device(CpuDevice):
    """Has memory that others map, unless it is full."""

    def __init__(self, is_full: bool) -> None:
        super().__init__()
        self.is_full = is_full

    def ipc_memory(self, count: int, value: int) -> Any:
        if self.is_full:
            raise DeviceError("cudaErrorMemoryAllocation")
        return SimpleNamespace(handle=lambda: b"handle")


def exchanged(world: World, missing: str) -> tuple[int, list[bytes]]:
    """How many collectives the session has, and what is pending after a captured call."""
    is_last = world.rank == 1
    word = torch.zeros(1, dtype=torch.int32)
    memory = PeerMemory(world.rank, torch.zeros(3, dtype=torch.int64), 256, word)
    direct = None if is_last and missing == "sums" else SymmetricReduce(memory, 256)
    _capture_sums_apart(direct, Device(is_last and missing == "memory"), world, range(2))
    ranks = TensorRanks(TensorParallel(world.rank, 2, world.tensors, direct), world=world)
    session = ranks.captures
    assert session is not None and ranks.captures is session
    if direct is None or direct.captured is None:
        return len(session._present), []
    direct.captured.capturing = True
    assert direct._among[0] is not memory.among[0]
    direct.captured.capturing = False
    assert direct._among[0] is memory.among[0]
    return len(session._present), direct.captured.pending()


@pytest.mark.parametrize(
    ("missing", "expected"), [("", (1, [b"handle"])), ("memory", (0, [])), ("sums", (0, []))]
)
def test_the_sums_of_all_ranks_or_of_none(tmp_path: Path, missing: str, expected: Any) -> None:
    assert run_ranks(tmp_path, 2, exchanged, missing) == [expected] * 2

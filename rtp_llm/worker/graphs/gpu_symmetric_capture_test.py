# SPDX-License-Identifier: Apache-2.0
"""Symmetric sums in CUDA graphs whose memory other processes map after the capture.

Two processes that share a GPU, or have one each; skipped where there are too few.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rtp_llm.device.base import Support
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.peer_memory import PeerMemory
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.world import World
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.testing.usable_gpu import usable_gpus
from rtp_llm.worker.graphs.capture_session import CaptureError, CaptureSession

GPU, COUNT = usable_gpus()
CAPACITY = 1 << 20


class ThroughHost(Group):
    """Moves tensors of a GPU by a group of host memory: NCCL refuses two ranks on one GPU."""

    def maximum(self, tensor: Tensor) -> None:
        host = tensor.cpu()
        super().maximum(host)
        tensor.copy_(host)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return super().all_gather(tensor.cpu()).to(tensor.device)


def _capture(
    device: CudaDevice, session: CaptureSession, direct: SymmetricReduce, x: Tensor, fails: bool
) -> object:
    """A graph that adds up x; raises CaptureError on all ranks if it `fails` on one."""
    graph, failure = device.new_graph(), None
    try:
        with session.capture(graph):
            direct.all_reduce(x)
            if fails:
                raise MemoryError("by the test")
    except MemoryError as error:
        failure = error
    session.finish_capture_session(failure)
    return graph


def captured(world: World, shares_gpu: bool) -> list[float]:
    """What replays give, after a capture that failed on rank 1."""
    device = CudaDevice(environ={}) if shares_gpu else CudaDevice()
    device.make_current()
    group = world.tensors
    if shares_gpu:
        group = ThroughHost(world.tensors._handle, world.rank, world.size)
    memory = PeerMemory.connect(group, device, CAPACITY, Support.yes())
    direct = SymmetricReduce(memory, CAPACITY)
    direct.capture_apart(device, range(world.size))
    session = CaptureSession(world.host, [direct.captured])
    x = torch.ones(64, 256, dtype=torch.bfloat16, device=device.torch_device)
    direct.all_reduce(x)  # loads the kernel
    device.synchronize()
    with pytest.raises(CaptureError, match="by the test"):
        _capture(device, session, direct, x, fails=world.rank == 1)
    graph = _capture(device, session, direct, x, fails=False)
    found = []
    for value in (1.0, 2.0, 3.0, 4.0):
        x.fill_(value + world.rank)
        graph.replay()  # type: ignore[attr-defined]
        direct.all_reduce(x)  # at once, on what all ranks have now
        device.synchronize()
        assert (x == x[0, 0]).all()
        found.append(x[0, 0].item())
    session.end()
    return found


@pytest.mark.parametrize(
    "shares_gpu",
    [
        pytest.param(True, marks=pytest.mark.skipif(GPU != "cuda", reason="no NVIDIA GPU")),
        pytest.param(
            False,
            marks=pytest.mark.skipif(GPU != "cuda" or COUNT < 2, reason=f"{COUNT} NVIDIA GPUs"),
        ),
    ],
)
def test_a_graphs_memory_is_mapped_after_its_capture(tmp_path: Path, shares_gpu: bool) -> None:
    place = "cpu" if shares_gpu else GPU
    found = run_ranks(tmp_path, 2, captured, shares_gpu, device=place)
    assert found == [[2 * (2 * value + 1) for value in (1.0, 2.0, 3.0, 4.0)]] * 2

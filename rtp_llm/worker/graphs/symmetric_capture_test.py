# SPDX-License-Identifier: Apache-2.0
"""Symmetric sums in graphs, rehearsed by gloo ranks that map each other's host memory.

The operator is replaced by one that a graph records and that finds its peers by address at every
replay, as the kernel does. On GPUs: gpu_symmetric_capture_test.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device.base import IPC_HANDLE_BYTES, DeviceError, Support
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.peer_memory import PeerMemory
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.world import World
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.worker.graphs.capture_session import CaptureError, CaptureSession

CAPACITY = 256


class SharedMemory:
    """An IpcMemory of files that all ranks map; a handle is a file's name."""

    def __init__(self, device: HostDevice, count: int, value: int) -> None:
        self._device, self._name = device, f"{device.rank}-{device.allocated}"
        self._words = self._map(self._name, count).fill_(value)
        self.address, self.mapped = self._words.data_ptr(), dict[int, Tensor]()

    def _map(self, name: str, count: int) -> Tensor:
        path = str(self._device.folder / name)
        return torch.from_file(path, shared=True, size=count, dtype=torch.int32)

    def handle(self) -> bytes:
        self._device.step("handle")
        return self._name.encode().ljust(IPC_HANDLE_BYTES, b"\0")

    def open(self, handle: bytes) -> int:
        self._device.step("open")
        words = self._map(handle.rstrip(b"\0").decode(), len(self._words))
        self.mapped[words.data_ptr()] = words
        return words.data_ptr()

    def close(self) -> None:
        self.mapped.clear()


class HostDevice(CpuDevice):
    """The CPU, with memory that other processes map; `fails_in` is what goes wrong with it."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__()
        self.folder, self.rank, self.allocated, self.fails_in = folder, rank, 0, ""

    def ipc_memory(self, count: int, value: int) -> SharedMemory:
        self.allocated += 1
        return SharedMemory(self, count, value)

    def step(self, name: str) -> None:
        if self.fails_in == name:
            raise DeviceError(f"{name} by the test")


class Graph:
    """Records sums, and makes them when it is replayed."""

    pool = None

    def __init__(self, world: World, ranks: range) -> None:
        self._world, self._ranks = world, ranks
        self._calls: list[Callable[[], None]] = []
        self.recording = False

    @contextmanager
    def capture(self, stream: Any = None) -> Iterator[None]:
        self.recording = True
        try:
            yield
        finally:
            self.recording = False

    def sum(
        self, x: Tensor, buffers: Tensor, state: Tensor, rank: int, capacity: int, two_shot: bool
    ) -> None:
        """In the place of ops.all_reduce."""
        call = lambda: self._sum(x, buffers, state, rank, capacity)  # noqa: E731
        if self.recording:
            self._calls.append(call)
        else:
            call()

    def _sum(self, x: Tensor, buffers: Tensor, state: Tensor, rank: int, capacity: int) -> None:
        *addresses, _ = buffers.tolist()
        assert 0 not in addresses, "a rank is not known yet"
        size = len(addresses)
        base = int(state[0]) % 3 * size * capacity
        state[0] += 1
        for address in addresses:
            ctypes.memmove(address + base + rank * capacity, x.data_ptr(), x.nbytes)
        self._world.host.wait_for_all()
        total = torch.zeros_like(x)
        for source in range(size):
            part = torch.empty_like(x)
            place = addresses[rank] + base + source * capacity
            ctypes.memmove(part.data_ptr(), place, x.nbytes)
            total += part
        x.copy_(total)

    def replay(self) -> None:
        for call in self._calls:
            call()

    def release(self) -> None:
        self._calls = []


class Rank:
    """One of a session's ranks, which sums with those of `ranks`."""

    def __init__(self, world: World, folder: str, per_group: int) -> None:
        first = world.rank // per_group * per_group
        self.world, self.ranks = world, range(first, first + per_group)
        group = world.tensors
        for start in range(0, world.size, per_group):
            if per_group < world.size:
                group = world.subgroup(range(start, start + per_group), Group) or group
        self.device = HostDevice(Path(folder), world.rank)
        memory = PeerMemory.connect(group, self.device, CAPACITY, Support.yes())
        self.direct = SymmetricReduce(memory, CAPACITY)
        self.direct.capture_apart(self.device, self.ranks)
        assert self.direct.captured is not None
        self.captured = self.direct.captured
        self.session = CaptureSession(world.host, [self.captured])
        self.x = torch.zeros(4)

    def capture(self, fails: bool = False) -> tuple[Graph, str]:
        """A graph of two sums, and why the session has not kept it."""
        graph, failure = Graph(self.world, self.ranks), None
        ops.all_reduce = graph.sum
        try:
            with self.session.capture(graph):
                self.direct.all_reduce(self.x)
                if fails:
                    raise MemoryError("step by the test")
                self.direct.all_reduce(self.x)
        except MemoryError as error:
            failure = error
        try:
            self.session.finish_capture_session(failure)
        except CaptureError as error:
            return graph, str(error)
        return graph, ""

    def check(self, run: Callable[[], None], times: int) -> None:
        """`run` makes `times` sums of what all ranks of the group give."""
        for value in (1.0, 2.0, 3.0, 4.0):
            self.x.copy_(value + self.world.rank + torch.arange(4))
            expected = sum(value + rank + torch.arange(4) for rank in self.ranks)
            run()
            assert torch.equal(self.x, expected * len(self.ranks) ** (times - 1))


def rehearsed(world: World, folder: str, fails_in: str, per_group: int) -> dict[str, Any]:
    """A capture that fails on the last rank, one that succeeds, and one that fails later."""
    rank = Rank(world, folder, per_group)
    is_last = world.rank == world.size - 1
    rank.device.fails_in = fails_in if is_last else ""
    lost, error = rank.capture(fails=is_last and fails_in == "step")
    found = {"error": error, "pending": rank.captured.pending(), "is_on": rank.captured.capturing}
    found["addresses"] = rank.captured._buffers[:-1].tolist()
    found["mapped"] = len(rank.captured._memory.mapped)  # type: ignore[attr-defined]
    lost.release()
    rank.device.fails_in = ""

    graph, error = rank.capture()
    assert error == "" and rank.captured.pending() == []
    known = rank.captured._buffers.tolist()
    rank.check(graph.replay, 2)
    rank.check(lambda: rank.direct.all_reduce(rank.x), 1)  # at once, in memory of its own
    rank.check(graph.replay, 2)

    _, error = rank.capture(fails=is_last)
    assert "step by the test" in error
    another, error = rank.capture()
    assert error == "" and rank.captured._buffers.tolist() == known, "what is registered stays"
    rank.check(another.replay, 2)
    rank.check(graph.replay, 2)
    rank.session.end()
    return found


@pytest.mark.parametrize(
    ("fails_in", "size", "reason"),
    [
        ("step", 2, "rank 1: MemoryError('step by the test')"),
        ("handle", 2, "rank 1: DeviceError('handle by the test')"),
        ("open", 2, "rank 1: DeviceError('open by the test')"),
        # Two stages: the ranks of a capture are four, and each sums with its stage's other one.
        ("open", 4, "rank 3: DeviceError('open by the test')"),
    ],
)
def test_a_capture_that_fails_on_one_rank_is_undone_on_all(
    tmp_path: Path, fails_in: str, size: int, reason: str
) -> None:
    for found in run_ranks(tmp_path, size, rehearsed, str(tmp_path), fails_in, 2):
        assert isinstance(found, dict), found
        assert reason in found.pop("error")
        assert found == {"pending": [], "is_on": False, "addresses": [0, 0], "mapped": 0}

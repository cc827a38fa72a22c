# SPDX-License-Identifier: Apache-2.0
"""A fake torch with nonexistent devices: tensors are on the CPU, and calls are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import Tensor

from rtp_llm.device.cuda import CudaDevice

GIB = 2**30
_VERSIONS = {
    "cuda": {"cuda": "13.0"},
    "rocm": {"hip": "7.0.5"},
    "xpu": {"xpu": "20260200"},
}


class FakeStream:
    """A stream that counts the waits for it."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class FakeEvent:
    """An event that records how it was created and counts calls."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.records = self.waits = 0

    def record(self) -> None:
        self.records += 1

    def synchronize(self) -> None:
        self.waits += 1


class FakeGraph:
    """A graph that counts its replays and records where it was captured."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.replays = 0
        self.capturing = False
        self.broken = self.is_reset = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local", "the default is spoilt by other threads"
        self.capturing = True
        self._backend.captured.append((self, pool, self._backend.main))

    def capture_end(self) -> None:
        self.capturing = False
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        self.replays += 1

    def reset(self) -> None:
        self.is_reset = True


class FakeBackend:
    """Looks like torch.cuda and torch.xpu; `calls` counts what would ask the driver."""

    Stream = FakeStream

    def __init__(
        self,
        count: int,
        capability: tuple[int, int] = (9, 0),
        name: str = "Fake GPU",
        processor: str = "gfx90a:sramecc+:xnack-",
    ) -> None:
        self.count = count
        self.calls: Counter[str] = Counter()
        self.properties = SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], gcnArchName=processor
        )
        self.lost = False
        self.index = 0
        self.main = FakeStream()
        self.events: list[FakeEvent] = []
        self.captured: list[tuple[FakeGraph, object, FakeStream | None]] = []

    def is_available(self) -> bool:
        self.calls["is_available"] += 1
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        if self.lost:
            raise RuntimeError("driver lost")
        return self.index

    def set_device(self, device: torch.device) -> None:
        self.index = device.index

    def get_device_name(self, device: torch.device) -> str:
        return f"{self.properties.name} {device.index}"

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return self.properties

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 60 * GIB, 80 * GIB

    def memory_allocated(self, device: torch.device) -> int:
        return 3 * GIB

    def memory_reserved(self, device: torch.device) -> int:
        return 5 * GIB

    def max_memory_reserved(self, device: torch.device) -> int:
        return 9 * GIB

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls["reset_peak_memory_stats"] += 1

    def empty_cache(self) -> None:
        self.calls["empty_cache"] += 1

    def synchronize(self, device: torch.device) -> None:
        self.calls["synchronize"] += 1

    def Event(self, enable_timing: bool) -> FakeEvent:
        self.events.append(FakeEvent(enable_timing))
        return self.events[-1]

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.main

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.main = self.main, stream
        yield
        self.main = before

    def CUDAGraph(self) -> FakeGraph:
        return FakeGraph(self)

    def graph_pool_handle(self) -> object:
        return ("pool", len(self.captured))


class FakeTorch:
    """What the devices use of torch: FakeTorch(cuda=2) was built for CUDA and finds two devices."""

    __version__ = "2.13.0+fake"

    def __init__(self, **counts: int) -> None:
        self.version = SimpleNamespace(cuda=None, hip=None, xpu=None)
        for kind in counts:
            vars(self.version).update(_VERSIONS[kind])
        self.cuda = FakeBackend(counts.get("cuda", 0) or counts.get("rocm", 0))
        self.xpu = FakeBackend(counts.get("xpu", 0))
        self.backends = {"gloo", "nccl", "xccl"}
        self.distributed = SimpleNamespace(
            is_available=lambda: True, is_backend_available=lambda name: name in self.backends
        )
        self.pinned = 0
        self.placed: list[str] = []

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> Tensor:
        self.pinned += pin_memory
        self.placed.append(str(device))
        return torch.empty(shape, dtype=dtype)


def gpu_in_host_memory() -> tuple[CudaDevice, FakeTorch]:
    """A GPU with tensors in host memory, which are accessed like those of a device."""
    fake = FakeTorch(cuda=1)
    device = CudaDevice(fake, {})
    device.torch_device = torch.device("cpu")
    return device, fake

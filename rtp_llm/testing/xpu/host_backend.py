# SPDX-License-Identifier: Apache-2.0
"""torch.xpu for a SYCL device that works on torch's CPU tensors: its queues and events are real.

The operators of the bridge are waited for, since torch itself works on CPU tensors without a queue.
What a missing wait would spoil on a GPU cannot show in values, then; it is checked here: whatever
was enqueued on a stream of its own must be waited for by someone.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from rtp_llm.device.cpu import CpuDevice

bridge = torch.ops.rtp_llm_xpu_bridge


class HostStream:
    """A SYCL queue of its own, or the device's first one.

    `work` counts what was enqueued, in times that the stream was entered; `joined` is how much of
    it others wait for.
    """

    def __init__(self, device: torch.device | None = None, number: int | None = None) -> None:
        self.number = int(bridge.new_stream()) if number is None else number
        self.work = self.joined = 0
        if number is None:
            weakref.finalize(self, bridge.release_stream, self.number)

    def wait_event(self, event: HostEvent) -> None:
        """As torch's: an event that was never recorded is not waited for."""
        if event.number:
            bridge.wait_event(self.number, event.number)
            event.join()

    def wait_stream(self, stream: HostStream) -> None:
        event = HostEvent()
        event.record(stream)
        self.wait_event(event)

    def query(self) -> bool:
        return bool(bridge.stream_is_done(self.number))

    def synchronize(self) -> None:
        bridge.synchronize_stream(self.number)
        self.joined = self.work


def _nothing() -> None:
    pass


class HostEvent:
    """A SYCL event; the time of a timed one is when the host recorded it."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.number = 0
        self._timed = enable_timing
        self._release: Callable[[], object] = _nothing
        self._seconds = 0.0
        self._stream: HostStream | None = None
        self._work = 0

    def record(self, stream: HostStream | None = None) -> None:
        stream = stream or BACKEND.current_stream(torch.device("cpu"))
        self._release()
        self.number = int(bridge.record_event(stream.number))
        self._release = weakref.finalize(self, bridge.release_event, self.number)
        self._stream, self._work, self._seconds = stream, stream.work, time.perf_counter()

    def wait(self, stream: HostStream | None = None) -> None:
        (stream or BACKEND.current_stream(torch.device("cpu"))).wait_event(self)

    def query(self) -> bool:
        return not self.number or bool(bridge.event_is_done(self.number))

    def synchronize(self) -> None:
        if self.number:
            bridge.synchronize_event(self.number)
            self.join()

    def join(self) -> None:
        """Someone waits for the work that the event marks."""
        assert self._stream is not None
        self._stream.joined = max(self._stream.joined, self._work)

    def elapsed_time(self, end_event: HostEvent) -> float:
        assert self._timed and end_event._timed, "torch measures between timed events only"
        assert self.number and end_event.number, "torch measures between recorded events only"
        return 1000 * (end_event._seconds - self._seconds)


class HostBackend:
    """The parts of torch.xpu that a device uses (accelerator.Backend)."""

    Stream = HostStream

    def __init__(self) -> None:
        self._first = HostStream(number=0)
        self._host = CpuDevice()
        self._thread = threading.local()
        self.entered: list[weakref.ref[HostStream]] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: torch.device) -> None:
        pass

    def get_device_name(self, device: torch.device) -> str:
        return str(bridge.device_name())

    def get_device_properties(self, device: torch.device) -> Any:
        return SimpleNamespace(name=bridge.device_name())

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self._host.memory_info().free, int(bridge.device_memory())

    def memory_allocated(self, device: torch.device) -> int:
        return int(bridge.memory_used())

    memory_reserved = memory_allocated  # nothing is kept for later

    def max_memory_reserved(self, device: torch.device) -> int:
        return int(bridge.peak_memory())

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        bridge.reset_peak_memory()

    def empty_cache(self) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        for stream in (self._first, *self._entered()):
            stream.synchronize()

    def Event(self, enable_timing: bool) -> HostEvent:
        return HostEvent(enable_timing)

    def current_stream(self, device: torch.device) -> HostStream:
        stream: HostStream = getattr(self._thread, "stream", self._first)
        return stream

    @contextmanager
    def stream(self, stream: HostStream) -> Iterator[None]:
        """The stream of this thread's work inside."""
        before = self.current_stream(torch.device("cpu"))
        if stream.work == 0 and stream is not self._first:
            self.entered.append(weakref.ref(stream))
        self._thread.stream = stream
        stream.work += 1
        bridge.use_stream(stream.number)
        try:
            yield
        finally:
            self._thread.stream = before
            bridge.use_stream(before.number)

    def unjoined(self) -> list[int]:
        """Numbers of living streams with work that nobody waits for."""
        return [stream.number for stream in self._entered() if stream.joined < stream.work]

    def _entered(self) -> list[HostStream]:
        return [stream for each in self.entered if (stream := each()) is not None]


BACKEND = HostBackend()

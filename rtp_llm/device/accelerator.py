# SPDX-License-Identifier: Apache-2.0
"""The common base of devices with a torch module that resembles torch.cuda."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.device import streams
from rtp_llm.device.base import Device, DeviceError, Download, MemoryInfo, Support
from rtp_llm.device.ranks import Ranks
from rtp_llm.device.streams import Event, Graph, Stream
from rtp_llm.device.visible import VisibleDevices, describe_mask, visible_devices

_ALIGNMENT = 16  # of arrays that are copied together: what kernels may load at once
# Enough to fill the device; streams that decode wait for it (29 ms of an H200 for a 0.6B model).
_BATCH_TOKENS = 8192
_MAX_THREADS = 8  # host threads; more do not speed up reading files or converting weights

_MEMORY_POLL_SECONDS = 0.1


class Backend(Protocol):
    """The part of torch.cuda and of torch.xpu that is used."""

    def is_available(self) -> bool: ...
    def device_count(self) -> int: ...
    def current_device(self) -> int: ...
    def set_device(self, device: torch.device) -> None: ...
    def get_device_name(self, device: torch.device) -> str: ...
    def get_device_properties(self, device: torch.device) -> Any: ...
    def mem_get_info(self, device: torch.device) -> tuple[int, int]: ...
    def memory_allocated(self, device: torch.device) -> int: ...
    def memory_reserved(self, device: torch.device) -> int: ...
    def max_memory_reserved(self, device: torch.device) -> int: ...
    def reset_peak_memory_stats(self, device: torch.device) -> None: ...
    def empty_cache(self) -> None: ...
    def synchronize(self, device: torch.device) -> None: ...
    def Stream(self, device: torch.device) -> streams.Stream: ...
    def Event(self, enable_timing: bool) -> streams.Event: ...
    def current_stream(self, device: torch.device) -> streams.Stream: ...
    def stream(self, stream: streams.Stream) -> AbstractContextManager[Any]: ...


class _Staged:
    """A download into pinned memory; its event is returned to `events` for reuse."""

    def __init__(self, tensors: tuple[Tensor, ...], event: Event, events: list[Event]) -> None:
        self._tensors = tensors
        self._event = event
        self._events = events

    def read(self) -> list[NDArray[Any]]:
        self._event.synchronize()
        self._events.append(self._event)
        return [tensor.numpy() for tensor in self._tensors]


class AcceleratorDevice(Device):
    """One of the visible devices of a vendor: the one at LOCAL_RANK, or the first.

    The first of `mask_variables` that is set selects the visible devices; `mask_end` is the entry
    at which the driver stops reading. `other_variables` also hide devices, and are applied first.
    """

    torch_type: ClassVar[str]
    mask_variables: ClassVar[tuple[str, ...]]
    mask_end: ClassVar[str | None] = None
    other_variables: ClassVar[tuple[str, ...]] = ()
    asynchronous: ClassVar[bool] = True

    def __init__(
        self,
        torch_module: Any = torch,
        environ: Mapping[str, str] = os.environ,
        targets: tuple[str, ...] = (),
    ) -> None:
        """`targets`: the architectures the kernels were compiled for; empty if unknown.

        Tests pass `torch_module` and `environ` in place of torch and os.environ.
        """
        self._torch = torch_module
        self._environ = environ
        self._targets = targets
        self._ranks = Ranks.read(environ)
        self.torch_device = torch.device(self.torch_type, self._ranks.local_rank or 0)
        self._spare_events: list[Event] = []

    @property
    def _backend(self) -> Backend:
        backend: Backend = getattr(self._torch, self.torch_type)
        return backend

    # -- what it is ----------------------------------------------------------------------------

    def _fits_kernels(self) -> Support:
        """Whether our kernels run on this model of the device."""
        return Support.yes()

    def available(self) -> Support:
        if not hasattr(self._torch, self.torch_type):
            return Support.no(f"this PyTorch has no module torch.{self.torch_type}")
        fits = self.fits_torch()
        if not fits:
            return fits
        count = self._backend.device_count() if self._backend.is_available() else 0
        if count == 0:
            return Support.no(f"PyTorch finds no such device or driver ({self._mask()})")
        if self.torch_device.index >= count:
            return Support.no(
                f"LOCAL_RANK={self.torch_device.index} has no device: {count} visible "
                f"({self._mask()})"
            )
        return self._fits_kernels()

    def description(self) -> str:
        memory = self.memory_info().total / 2**30
        name = self._backend.get_device_name(self.torch_device)
        return f"{self.torch_device} ({name}, {memory:.0f} GiB)"

    def default_threads(self) -> int:
        return min(_MAX_THREADS, len(os.sched_getaffinity(0)))

    def default_batch_tokens(self) -> int:
        return _BATCH_TOKENS

    def _properties(self) -> Any:
        return self._backend.get_device_properties(self.torch_device)

    def _mask(self) -> str:
        return describe_mask((*self.mask_variables, *self.other_variables), self._environ)

    # -- devices of this type ------------------------------------------------------------------

    def device_count(self) -> int:
        return self._backend.device_count()

    def visible_devices(self) -> VisibleDevices:
        return visible_devices(
            self.mask_variables, self._environ, self.device_count(), self.mask_end
        )

    def has_collectives(self) -> Support:
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_backend_available(self.collectives):
            return Support.yes()
        return Support.no(f"PyTorch {self._torch.__version__} was built without {self.collectives}")

    def check_group(self, ranks: Ranks) -> None:
        count = self.device_count()
        if count == 0:
            raise DeviceError(f"{self.name}: no device is visible ({self._mask()})")
        local = ranks.local_world_size or min(count, ranks.world_size)
        if local > count:
            raise DeviceError(
                f"LOCAL_WORLD_SIZE={local} processes have {count} devices ({self._mask()})"
            )
        if ranks.world_size % local:
            raise DeviceError(
                f"world_size {ranks.world_size} must be a multiple of local device count {local}"
            )

    def make_current(self) -> None:
        self._backend.set_device(self.torch_device)

    def current_index(self) -> int:
        try:
            return self._backend.current_device()
        except (RuntimeError, AssertionError) as error:
            # Never device 0 by default: ranks would pile up on it.
            rank, entries = self._ranks.local_rank, self.visible_devices().entries
            if rank is not None and rank < len(entries):
                return rank
            raise DeviceError(
                f"{self.name}: the current device is unknown ({error}); LOCAL_RANK is "
                f"{'not set' if rank is None else rank}, visible devices: "
                f"{', '.join(entries) or 'none'} ({self._mask()})"
            ) from error

    # -- memory --------------------------------------------------------------------------------

    def memory_info(self) -> MemoryInfo:
        free, total = self._backend.mem_get_info(self.torch_device)
        allocated = self._backend.memory_allocated(self.torch_device)
        return MemoryInfo(free=free + self.memory_used() - allocated, total=total)

    def await_free_memory(self, wanted: int, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while (free := self.memory_info().free) < wanted and time.monotonic() < deadline:
            time.sleep(_MEMORY_POLL_SECONDS)
        return free

    def memory_used(self) -> int:
        return self._backend.memory_reserved(self.torch_device)

    def peak_memory(self) -> int:
        return self._backend.max_memory_reserved(self.torch_device)

    def reset_peak_memory(self) -> None:
        self._backend.reset_peak_memory_stats(self.torch_device)

    def empty_cache(self) -> None:
        self._backend.empty_cache()

    def pinned_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory: Tensor = self._torch.empty(shape, dtype=dtype, pin_memory=True)
        return memory

    def upload(self, array: NDArray[Any]) -> Tensor:
        return self.upload_all(array)[0]

    def upload_all(self, *arrays: NDArray[Any]) -> list[Tensor]:
        starts = [0, *accumulate(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]
        size = (starts.pop(),)
        # torch keeps pinned memory that it gave out until the copies from it are done.
        staged = self.pinned_empty(size, torch.uint8)
        host = staged.numpy()
        there: Tensor = self._torch.empty(size, dtype=torch.uint8, device=self.torch_device)
        results = []
        for start, array in zip(starts, arrays, strict=True):
            part = slice(start, start + array.nbytes)
            np.copyto(host[part].view(array.dtype).reshape(array.shape), array)
            results.append(there[part].view(_torch_dtype(array.dtype)).view(array.shape))
        there.copy_(staged, non_blocking=True)
        return results

    def start_download(self, *tensors: Tensor) -> Download:
        staged = tuple(self.pinned_empty(tuple(each.shape), each.dtype) for each in tensors)
        for target, tensor in zip(staged, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)
        event = self._spare_events.pop() if self._spare_events else self.new_event()
        event.record()
        return _Staged(staged, event, self._spare_events)

    # -- order of work -------------------------------------------------------------------------

    def synchronize(self) -> None:
        self._backend.synchronize(self.torch_device)

    def new_stream(self) -> Stream:
        return self._backend.Stream(device=self.torch_device)

    def current_stream(self) -> Stream:
        return self._backend.current_stream(self.torch_device)

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        return self._backend.stream(stream)

    def new_event(self, timed: bool = False) -> Event:
        return self._backend.Event(enable_timing=timed)

    def new_graph(self, pool: object = None) -> Graph:
        answer = self.supports("graph_capture")
        if not answer:
            raise DeviceError(f"{self.name} captures no graphs: {answer.reason}")
        return TorchGraph(self._backend, pool)


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


class TorchGraph:
    """A captured graph of kernels, replayed by torch.cuda.CUDAGraph."""

    def __init__(self, backend: Any, pool: object) -> None:
        self._backend = backend
        self._graph = backend.CUDAGraph()
        self._pool = backend.graph_pool_handle() if pool is None else pool

    @property
    def pool(self) -> object:
        return self._pool

    @contextmanager
    def capture(self, stream: Stream | None = None) -> Iterator[None]:
        # Not torch.cuda.graph, which empties the allocator's cache: requests may be running.
        with self._backend.stream(stream or self._backend.Stream()):
            # Calls of other threads must not invalidate the capture.
            self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                # Ending an invalidated capture may fail too; the first error is the relevant one.
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        self._graph.reset()

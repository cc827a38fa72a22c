# SPDX-License-Identifier: Apache-2.0
"""The interface of a device, and the result type of support checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity

from rtp_llm.device.capabilities import Capabilities
from rtp_llm.device.ranks import Ranks
from rtp_llm.device.streams import Event, Graph, Stream
from rtp_llm.device.visible import VisibleDevices


class DeviceError(ValueError):
    """The requested device cannot be used; the message says why and what to change."""


@dataclass(frozen=True)
class Support:
    """Yes, or no with a reason; true in a boolean context if yes."""

    supported: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.supported

    @classmethod
    def yes(cls) -> Support:
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Support:
        return cls(False, reason)


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes that this process may still allocate, and its total bytes on the device."""

    free: int
    total: int


class Download(Protocol):
    """Values on their way to the host."""

    def read(self) -> list[NDArray[Any]]:
        """Return the values, once. Waits for the work enqueued before the download began."""


IPC_HANDLE_BYTES = 64


class IpcMemory(Protocol):
    """Device memory shared with other processes of the machine, and mappings of their memory.

    All of it is released when the object is destroyed and must not be accessed afterwards.
    """

    address: int

    def handle(self) -> bytes:
        """The handle, IPC_HANDLE_BYTES long, for others. DeviceError if it cannot be shared."""

    def open(self, handle: bytes) -> int:
        """Map another process's memory and return its address. DeviceError without access."""

    def close(self) -> None:
        """End the mappings of other processes' memory, which no kernel may use any more."""


class Device(ABC):
    """One device type as the core sees it, by its capabilities and never by its name.

    A new device is a subclass in its own file and one row of the table in resolve.py. Constructing
    one does not touch the driver; everything except `name`, `supports` and the constants may.
    """

    name: ClassVar[str]
    collectives: ClassVar[str]  # backend of torch.distributed
    graphs_by_default: ClassVar[bool] = True  # False: graphs are untested on such a device
    # Variables of torch.distributed that its collectives need, where the user has not set them.
    collectives_environment: ClassVar[Mapping[str, str]] = {}
    profiler_activity: ClassVar[ProfilerActivity]
    # The device shares memory with the system and other programs, so a plan leaves most of it free.
    shares_memory: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]]  # capability -> reason
    # Of those: refused because they were never run, and allowed by --allow-untested-device.
    untested: ClassVar[frozenset[str]] = frozenset()
    kernel_features: ClassVar[frozenset[str]] = frozenset()  # of every device of this type
    max_head_dim: ClassVar[int | None] = None  # see Capabilities
    asynchronous: ClassVar[bool]  # work runs concurrently with the host, so steps may overlap
    torch_device: torch.device

    # -- what it is ----------------------------------------------------------------------------

    @abstractmethod
    def available(self) -> Support:
        """Whether this machine can use the device now, or what is missing."""

    def fits_torch(self) -> Support:
        """Whether this PyTorch was built for the device; does not query the driver."""
        return Support.yes()

    @abstractmethod
    def description(self) -> str:
        """One line for the log: model, cores or multiprocessors, instruction sets."""

    def supports(self, feature: str) -> Support:
        """Whether `feature` (a key of CAPABILITIES) works here; ValueError for an unknown one."""
        if feature not in CAPABILITIES:
            raise ValueError(f"unknown capability {feature!r}; known: {', '.join(CAPABILITIES)}")
        return Support.no(self.refused[feature]) if feature in self.refused else Support.yes()

    def default_threads(self) -> int:
        """Default number of host threads for kernels and the loader."""
        return 1

    def capabilities(self) -> Capabilities:
        """The capabilities of the device's kernels."""
        return Capabilities(
            self.name, self.torch_device.type, self.kernel_features, self.max_head_dim
        )

    def near_cores(self) -> frozenset[int]:
        """Host cores closest to the device; empty if unknown, or if all are equally close."""
        return frozenset()

    def default_block_size(self) -> int:
        """Default number of tokens per block of the KV cache."""
        return 16

    @abstractmethod
    def default_batch_tokens(self) -> int:
        """Default token budget of a step."""

    def float8(self) -> torch.dtype:
        """The 8-bit float dtype of its kernels, used for an 8-bit cache."""
        return torch.float8_e4m3fn

    # -- devices of this type ------------------------------------------------------------------

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices of this type that are visible to this process."""

    @abstractmethod
    def visible_devices(self) -> VisibleDevices:
        """The devices that this process may use, as named in the user's mask."""

    def has_collectives(self) -> Support:
        """Whether this PyTorch has `collectives`, the device's backend of torch.distributed."""
        return Support.yes()  # gloo is in every build

    @abstractmethod
    def check_group(self, ranks: Ranks) -> None:
        """Raise DeviceError unless processes like this one can share the machine's devices."""

    @abstractmethod
    def make_current(self) -> None:
        """Make `torch_device` the device of this thread's streams and allocations."""

    @abstractmethod
    def current_index(self) -> int:
        """Position of the current device among the visible ones; DeviceError if there is none."""

    # -- memory --------------------------------------------------------------------------------

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """The memory for weights and KV cache, within the limits of this process."""

    @abstractmethod
    def await_free_memory(self, wanted: int, seconds: float) -> int:
        """Wait at most `seconds` until `wanted` bytes are free; returns the free bytes.

        A driver releases the memory of a process only some time after it has died. Returns 0
        immediately if the device uses host memory.
        """

    @abstractmethod
    def memory_used(self) -> int:
        """Bytes of device memory that this process currently holds."""

    @abstractmethod
    def peak_memory(self) -> int:
        """The maximum of `memory_used` since `reset_peak_memory`."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Reset `peak_memory` to the current usage."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Return memory cached for later allocations to the system."""

    @abstractmethod
    def pinned_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate page-locked host memory, for asynchronous copies to and from the device."""

    def ipc_memory(self, count: int, value: int) -> IpcMemory:
        """Allocate `count` 32-bit words, set to `value`, which other processes can map.

        Raises DeviceError if this is not supported or memory is exhausted.
        """
        raise DeviceError(f"other processes cannot map memory of {self.name}")

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Tensor:
        """Copy `array` to the device, without waiting for the copy.

        If the device uses host memory, nothing is copied and the tensor shares the array's memory.
        Otherwise the array may be reused immediately.
        """

    @abstractmethod
    def upload_all(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """Like `upload`, for several arrays in a single copy."""

    @abstractmethod
    def start_download(self, *tensors: Tensor) -> Download:
        """Start downloading the tensors' values as of the work enqueued so far.

        Does not wait: more work may be enqueued before the values are read.
        """

    def download(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """Return the tensors' values on the host. Waits once, for the work enqueued before."""
        return self.start_download(*tensors).read()

    # -- order of work -------------------------------------------------------------------------

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished all work."""

    @abstractmethod
    def new_stream(self) -> Stream:
        """Create a stream that runs concurrently with the current one."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream that work is currently enqueued on."""

    @abstractmethod
    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        """Return a context in which work is enqueued on `stream`."""

    @abstractmethod
    def new_event(self, timed: bool = False) -> Event:
        """Create an event; `timed` events measure the milliseconds between them."""

    @abstractmethod
    def new_graph(self, pool: object = None) -> Graph:
        """Create an empty graph; graphs with the same `pool` (another graph's) share memory.

        Raises DeviceError unless `supports("graph_capture")`.
        """


CAPABILITIES: dict[str, str] = {
    "float32": "weights, activations and KV cache in float32",
    "bfloat16": "weights, activations and KV cache in bfloat16",
    "float16": "weights, activations and KV cache in float16",
    "int8_weights": "int8 weight-only quantisation while loading",
    "int4_weights": "4-bit weights in groups while loading",
    "int8_products": "products of int8 weights and activations that are quantised as they come",
    "fp8_products": "products of 8-bit floats, for weights and activations in FP8 blocks",
    "quantized_kv_cache": "a KV cache in 8 bits",
    "graph_capture": "capturing a step and replaying it",
    "pinned_memory": "page-locked host buffers for asynchronous copies",
    "tensor_parallel": "one model over several devices",
    "memory_export": "memory that other processes read by NIXL",
}

# SPDX-License-Identifier: Apache-2.0
"""The interface of a device, and the answer type of everything that may be refused."""

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
    """The device that was asked for cannot be used; the message says why and what to change."""


@dataclass(frozen=True)
class Support:
    """Yes, or no with the reason; true in a condition when yes."""

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
    """Bytes that this process may still take, and bytes that the device has for it in all."""

    free: int
    total: int


class Download(Protocol):
    """Values on their way to the host."""

    def read(self) -> list[NDArray[Any]]:
        """The values, once. Waits for what was asked of the device before the download began."""


IPC_HANDLE_BYTES = 64


class IpcMemory(Protocol):
    """Memory of a device which other processes of the machine map, and what was mapped of theirs.

    All of it is given back once the object is gone; nobody touches it from then on.
    """

    address: int

    def handle(self) -> bytes:
        """IPC_HANDLE_BYTES by which others map it. Raises DeviceError where it cannot be shared."""

    def open(self, handle: bytes) -> int:
        """The address here of another process's memory. Raises DeviceError for no access."""


class Device(ABC):
    """One device type as the core sees it: it asks for capabilities, never for the name.

    A new device is a subclass in its own file and one row of the table in resolve.py. Making one
    touches no driver; everything but `name`, `supports` and the other constants may.
    """

    name: ClassVar[str]
    collectives: ClassVar[str]  # backend of torch.distributed
    graphs_by_default: ClassVar[bool] = True  # False: none has run on such a device yet
    # Variables of torch.distributed that its collectives need, where the user has not set them.
    collectives_environment: ClassVar[Mapping[str, str]] = {}
    profiler_activity: ClassVar[ProfilerActivity]
    # Its memory is also that of the system and of other programs, so that a plan leaves most of it.
    shares_memory: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]]  # capability -> reason
    kernel_features: ClassVar[frozenset[str]] = frozenset()  # of every device of this type
    max_head_dim: ClassVar[int | None] = None  # see Capabilities
    asynchronous: ClassVar[bool]  # it works on while the host goes on, so that steps may overlap
    torch_device: torch.device

    # -- what it is ----------------------------------------------------------------------------

    @abstractmethod
    def available(self) -> Support:
        """Whether this machine can run it now, or what is missing."""

    def fits_torch(self) -> Support:
        """Whether this PyTorch was built for the device; asks no driver."""
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
        """Host threads that kernels and the loader should use when the user set nothing."""
        return 1

    def capabilities(self) -> Capabilities:
        """What its kernels can do."""
        return Capabilities(
            self.name, self.torch_device.type, self.kernel_features, self.max_head_dim
        )

    def near_cores(self) -> frozenset[int]:
        """Host cores closest to the device; empty if unknown, or if all are equally close."""
        return frozenset()

    def default_block_size(self) -> int:
        """Tokens in a block of the KV cache when the user set nothing."""
        return 16

    @abstractmethod
    def default_batch_tokens(self) -> int:
        """Token budget of a step when the user set nothing."""

    def float8(self) -> torch.dtype:
        """The 8-bit floats that its kernels compute with: what a cache of 8 bits holds."""
        return torch.float8_e4m3fn

    # -- devices of this type ------------------------------------------------------------------

    @abstractmethod
    def device_count(self) -> int:
        """Devices of this type that this process sees."""

    @abstractmethod
    def visible_devices(self) -> VisibleDevices:
        """The devices that this process may use, as the user's mask names them."""

    @abstractmethod
    def check_group(self, ranks: Ranks) -> None:
        """Raise DeviceError unless processes like this one can share the machine's devices."""

    @abstractmethod
    def make_current(self) -> None:
        """Let this thread's streams and allocations be those of `torch_device`."""

    @abstractmethod
    def current_index(self) -> int:
        """Position of the current device among the visible ones; DeviceError if there is none."""

    # -- memory --------------------------------------------------------------------------------

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Memory where weights and KV cache live, as limited for this process."""

    @abstractmethod
    def await_free_memory(self, wanted: int, seconds: float) -> int:
        """Wait, for so many seconds at most, until `wanted` bytes are free; returns what is.

        A driver gives the memory of a process that died back only some time after its end. 0, at
        once, where memory is the host's.
        """

    @abstractmethod
    def memory_used(self) -> int:
        """Bytes of that memory that this process holds now."""

    @abstractmethod
    def peak_memory(self) -> int:
        """The most that `memory_used` was since `reset_peak_memory`."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Let `peak_memory` begin anew."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that is kept for later allocations back to the system."""

    @abstractmethod
    def pinned_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory that copies to and from the device need not wait for."""

    def ipc_memory(self, count: int, value: int) -> IpcMemory:
        """`count` words of 32 bits that are `value`, which other processes can map.

        Raises DeviceError where there is no such memory, or no room.
        """
        raise DeviceError(f"other processes cannot map memory of {self.name}")

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Tensor:
        """`array` on the device, without waiting for the copy.

        Where host memory is the device's memory nothing is copied: the tensor changes with the
        array. Elsewhere the array may be reused at once.
        """

    @abstractmethod
    def upload_all(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """As `upload` for several arrays, with one copy for all of them."""

    @abstractmethod
    def start_download(self, *tensors: Tensor) -> Download:
        """The tensors' values as they are once the device has done what was asked of it so far.

        Does not wait: the device may be given more work before they are read.
        """

    def download(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """The tensors' values on the host. Waits once, for what was asked of the device before."""
        return self.start_download(*tensors).read()

    # -- order of work -------------------------------------------------------------------------

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done everything."""

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
        """A mark in a stream; `timed` ones tell the milliseconds between them."""

    @abstractmethod
    def new_graph(self, pool: object = None) -> Graph:
        """An empty graph; those of one `pool` (another's `pool`) share memory.

        Raises DeviceError where `supports("graph_capture")` says no.
        """


CAPABILITIES: dict[str, str] = {
    "float32": "weights, activations and KV cache in float32",
    "bfloat16": "weights, activations and KV cache in bfloat16",
    "float16": "weights, activations and KV cache in float16",
    "int8_weights": "int8 weight-only quantisation while loading",
    "int8_products": "products of int8 weights and activations that are quantised as they come",
    "fp8_products": "products of 8-bit floats, for weights and activations in FP8 blocks",
    "quantized_kv_cache": "a KV cache in 8 bits",
    "graph_capture": "capturing a step and replaying it",
    "pinned_memory": "page-locked host buffers for asynchronous copies",
    "tensor_parallel": "one model over several devices",
    "memory_export": "memory that other processes read by NIXL",
}

# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPU memory that is shared with other processes of the machine by CUDA IPC handles.

See cudaIpcGetMemHandle in the CUDA Runtime API. The memory comes from cudaMalloc, since a handle of
memory from PyTorch's allocator would expose the whole surrounding block.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import torch

from rtp_llm.device.base import DeviceError

# Smaller allocations may share a page, of which a handle would export all that others have there.
_GRANULARITY = 2 * 2**20


class CudaIpcMemory:
    """`count` 32-bit words on one GPU, and mappings of other processes' memory.

    All of it is released when this object is destroyed. A process must not access the memory of
    another process that has freed it.
    """

    def __init__(self, device: torch.device, count: int, value: int) -> None:
        """Set each word to `value`. Raises DeviceError if out of memory or without the library."""
        self._device, self._opened = device, list[int]()
        self._runtime = _bindings("runtime")
        with torch.cuda.device(device):
            size = -(-4 * count // _GRANULARITY) * _GRANULARITY
            self.address = int(self._done(self._runtime.cudaMalloc(size)))
            freed = weakref.finalize(self, _free, self._runtime, device, self.address, self._opened)
            freed.atexit = False  # it waits for kernels, and those may wait for a rank that is gone
            unsigned = value % 2**32
            self._done(_bindings("driver").cuMemsetD32(self.address, unsigned, count))
            torch.cuda.synchronize()

    def handle(self) -> bytes:
        """The handle for other processes. Raises DeviceError if the memory cannot be shared."""
        return bytes(self._done(self._runtime.cudaIpcGetMemHandle(self.address)).reserved)

    def open(self, handle: bytes) -> int:
        """Map memory of another process, on any GPU of the machine, and return its address.

        Raises:
            DeviceError: this GPU cannot access the memory, or the handle is invalid.
        """
        given = self._runtime.cudaIpcMemHandle_t()
        given.reserved = handle
        enable_peer_access = self._runtime.cudaIpcMemLazyEnablePeerAccess
        with torch.cuda.device(self._device):
            address = self._done(self._runtime.cudaIpcOpenMemHandle(given, enable_peer_access))
        self._opened.append(int(address))
        return self._opened[-1]

    def close(self) -> None:
        """End the mappings of other processes' memory, which no kernel may use any more."""
        with torch.cuda.device(self._device):
            while self._opened:
                self._done(self._runtime.cudaIpcCloseMemHandle(self._opened.pop()))

    def _done(self, answer: Any) -> Any:
        """The results of a library call without its status. Raises DeviceError if it failed."""
        status, *values = answer
        if int(status):
            self._runtime.cudaGetLastError()  # which the next check after a kernel would find
            raise DeviceError(status.name)
        return values[0] if values else None


def _bindings(name: str) -> Any:
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise DeviceError(f"the package cuda-bindings is not installed ({error})") from error


def _free(runtime: Any, device: torch.device, address: int, opened: list[int]) -> None:
    with torch.cuda.device(device):
        for each in opened:
            runtime.cudaIpcCloseMemHandle(each)
        runtime.cudaFree(address)

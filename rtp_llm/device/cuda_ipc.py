# SPDX-License-Identifier: Apache-2.0
"""Memory of an NVIDIA GPU that other processes of the machine map, by CUDA's IPC handles.

Documented with cudaIpcGetMemHandle in the CUDA Runtime API. It comes from cudaMalloc: a handle of
memory from PyTorch's allocator would be that of the whole block around it.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import torch

from rtp_llm.device.base import DeviceError


class CudaIpcMemory:
    """`count` words of 32 bits on one GPU, and the memory of other processes that was opened here.

    All of it is given back once this object is gone. A process must not touch the memory of another
    that has freed it.
    """

    def __init__(self, device: torch.device, count: int, value: int) -> None:
        """Each word is `value`. Raises DeviceError where there is no room, or no library."""
        self._device, self._opened = device, list[int]()
        self._runtime = _bindings("runtime")
        with torch.cuda.device(device):
            self.address = int(self._done(self._runtime.cudaMalloc(4 * count)))
            freed = weakref.finalize(self, _free, self._runtime, device, self.address, self._opened)
            freed.atexit = False  # it waits for kernels, and those may wait for a rank that is gone
            unsigned = value % 2**32
            self._done(_bindings("driver").cuMemsetD32(self.address, unsigned, count))
            torch.cuda.synchronize()

    def handle(self) -> bytes:
        """By which other processes open it. Raises DeviceError where it cannot be shared."""
        return bytes(self._done(self._runtime.cudaIpcGetMemHandle(self.address)).reserved)

    def open(self, handle: bytes) -> int:
        """The address here of the memory that another process on any GPU of the machine gave.

        Raises:
            DeviceError: this GPU cannot reach it, or the handle is of no memory.
        """
        given = self._runtime.cudaIpcMemHandle_t()
        given.reserved = handle
        enable_peer_access = self._runtime.cudaIpcMemLazyEnablePeerAccess
        with torch.cuda.device(self._device):
            address = self._done(self._runtime.cudaIpcOpenMemHandle(given, enable_peer_access))
        self._opened.append(int(address))
        return self._opened[-1]

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

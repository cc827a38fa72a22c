# SPDX-License-Identifier: Apache-2.0
"""Memory for what every step reads in full, weights and the KV cache: on huge pages if available.

Reading 4 KB pages costs an address translation each, which is slow on virtual machines: measured
with two cores, 48 GB/s instead of 80 GB/s.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

_HUGE_PAGE = 2 * 2**20
_SHARED = 256 * 2**20  # addresses that tensors share; what is not written takes no memory
_LARGEST_SHARED = _SHARED // 8  # the remainder of a larger tensor hardly counts
_ALIGNMENT = 64


def empty_on(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on `device`, contiguous: on the CPU as `empty` gives it."""
    if device.type == "cpu":
        return empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, contiguous and aligned; no page is touched before it is written.

    Requests whole huge pages; the remainder, small tensors, and systems without huge pages get
    ordinary memory, which works the same.
    """
    size = math.prod(shape) * dtype.itemsize
    whole = size // _HUGE_PAGE * _HUGE_PAGE
    if whole == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device="cpu")
    mapped = _map(size, whole)
    if mapped is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    mapping, first = mapped
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    return memory[first : first + size].view(dtype).view(shape)


def empty_lasting(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As empty_on, for tensors that live as long as the model: small ones share huge pages.

    The memory of one that dies is returned, but its neighbours then lie on ordinary pages.
    """
    size = math.prod(shape) * dtype.itemsize
    view = _SHARING.take(size) if device.type == "cpu" and 0 < size <= _LARGEST_SHARED else None
    if view is None:
        return empty_on(device, shape, dtype)
    return torch.frombuffer(view, dtype=torch.uint8).view(dtype).view(shape)


class _Sharing:
    """Hands out memory of one mapping after the other; they live as long as what was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapping: weakref.ref[mmap.mmap] | None = None
        self._next = self._end = 0

    def take(self, size: int) -> memoryview | None:
        """`size` bytes; None where there are no huge pages."""
        with self._lock:
            mapping = self._mapping() if self._mapping is not None else None
            if mapping is None or self._end - self._next < size:
                mapped = _map(_SHARED, _SHARED) if hasattr(mmap, "MADV_HUGEPAGE") else None
                if mapped is None:
                    return None
                mapping, self._next = mapped
                self._mapping, self._end = weakref.ref(mapping), self._next + _SHARED
            first = self._next
            self._next += -(-size // _ALIGNMENT) * _ALIGNMENT
        view = memoryview(mapping)[first : first + size]
        weakref.finalize(view, _return_pages, mapping, first, first + size).atexit = False
        return view


_SHARING = _Sharing()


def _return_pages(mapping: mmap.mmap, first: int, end: int) -> None:
    first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


def _map(size: int, whole: int) -> tuple[mmap.mmap, int] | None:
    """A mapping and the first aligned address in it, from which `whole` bytes are huge pages."""
    # Private: shared memory has huge pages on few systems. The part before the first aligned
    # address is never touched and so takes no memory.
    try:
        mapping = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = -torch.frombuffer(mapping, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
        mapping.madvise(mmap.MADV_HUGEPAGE, first, whole)
    except OSError:  # a kernel without them
        return None
    return mapping, first

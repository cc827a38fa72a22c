# SPDX-License-Identifier: Apache-2.0
"""Memory for what every step reads in full, weights and the KV cache: on huge pages if available.

Reading 4 KB pages costs an address translation each, which is slow on virtual machines: measured
with two cores, 48 GB/s instead of 80 GB/s.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 * 2**20


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
    # Private: shared memory has huge pages on few systems. The part before the first aligned
    # address is never touched and so takes no memory.
    mapping = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    first = -memory.data_ptr() % _HUGE_PAGE
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE, first, whole)
    except OSError:  # a kernel without them
        return torch.empty(shape, dtype=dtype, device="cpu")
    return memory[first : first + size].view(dtype).view(shape)

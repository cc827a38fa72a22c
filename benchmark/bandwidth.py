"""How fast this machine reads memory: the limit of decoding, whose every step reads the weights."""

from __future__ import annotations

import functools
import mmap
import time

import torch
from torch import Tensor

_BYTES = 512 * 2**20
_HUGE_PAGE = 2 * 2**20
_REPEATS = 3


def read_bandwidth() -> float:
    """Bytes per second of the best of some sums over 512 MiB, with torch's present threads."""
    numbers = _numbers()
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - began)
    return numbers.nbytes / best


@functools.cache
def _numbers() -> Tensor:
    """A buffer on huge pages where the system has them, far larger than any cache."""
    memory = mmap.mmap(-1, _BYTES + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    skipped = -whole.data_ptr() % _HUGE_PAGE // whole.element_size()
    numbers = whole[skipped : skipped + _BYTES // whole.element_size()]
    return numbers.fill_(1.0)

"""How fast this machine reads memory: the limit of decoding, whose every step reads the weights."""

from __future__ import annotations

import functools
import time

import torch
from torch import Tensor

from rtp_llm.ops import huge_pages

_BYTES = 512 * 2**20
_PARTS = 8
_ROUNDS = 3


def read_bandwidth() -> float:
    """Bytes per second of the fastest sum over a part of 512 MiB, with torch's present threads."""
    parts = _numbers().chunk(_PARTS)
    best = float("inf")
    for part in parts * _ROUNDS:
        began = time.perf_counter()
        part.sum()
        best = min(best, time.perf_counter() - began)
    return parts[0].nbytes / best


@functools.cache
def _numbers() -> Tensor:
    """A buffer far larger than any cache, on huge pages as the weights are."""
    return huge_pages.empty((_BYTES // 4,), torch.float32).fill_(1.0)

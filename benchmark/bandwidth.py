# SPDX-License-Identifier: Apache-2.0
"""How fast this machine reads memory: the limit of decoding, since each step reads all weights."""

from __future__ import annotations

import functools
import time

import torch
from torch import Tensor

from rtp_llm.ops import huge_pages

_BYTES = 512 * 2**20
_PART = 64 * 2**20  # read at once; larger than the caches


def read_bandwidth() -> float:
    """Bytes per second of the fastest of eight sums over 64 MiB, with torch's present threads.

    The memory lies on huge pages where the system has them, as the weights do.
    """
    best = float("inf")
    for part in _numbers():
        began = time.perf_counter()
        part.sum()
        best = min(best, time.perf_counter() - began)
    return _PART / best


@functools.cache
def _numbers() -> tuple[Tensor, ...]:
    numbers = huge_pages.empty((_BYTES // 4,), torch.float32).fill_(1.0)
    return numbers.split(_PART // 4)

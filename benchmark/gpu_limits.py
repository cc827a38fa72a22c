# SPDX-License-Identifier: Apache-2.0
"""The device's measured limits: bytes copied and matrix operations per second."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmark.gpu_time import copy_bandwidth, microseconds
from rtp_llm.device import Device

_SIDE = 8192  # of the matrices; large enough that cuBLAS reaches its best rate


@dataclass(frozen=True)
class Rates:
    """Bytes a second, read and written; floating-point operations a second in bfloat16."""

    copy: float
    products: float

    def seconds(self, num_bytes: float, operations: float) -> float:
        """Return the time of work that must do both, fully overlapped: the slower of the two."""
        return max(num_bytes / self.copy, operations / self.products)


def measure_rates(device: Device) -> Rates:
    """Both rates; on the CPU rough ones, so that a benchmark can be tried there."""
    if not device.supports("graph_capture"):
        return _rough_rates()
    shape = (_SIDE, _SIDE)
    left, right = (
        torch.randn(shape, device=device.torch_device, dtype=torch.bfloat16) for _ in range(2)
    )
    out = torch.empty_like(left)
    taken = microseconds(device, lambda: torch.mm(left, right, out=out), 3)
    return Rates(copy_bandwidth(device, 3), 2 * _SIDE**3 / taken * 1e6)


def _rough_rates() -> Rates:
    numbers = torch.randn(1024, 1024)
    began = time.perf_counter()
    numbers @ numbers
    products = 2 * 1024**3 / (time.perf_counter() - began)
    began = time.perf_counter()
    numbers.clone()
    return Rates(2 * numbers.nbytes / (time.perf_counter() - began), products)

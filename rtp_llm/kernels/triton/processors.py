"""What a launch has to fill: the multiprocessors of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Processors:
    """Multiprocessors of a GPU, and the shared memory that a block can have on one."""

    count: int
    shared_bytes: int


@cache
def processors_of(device: torch.device) -> Processors:
    """Those of the device; the interpreter on the CPU has one."""
    if device.type == "cpu":
        return Processors(1, 0)
    import triton

    utilities = triton.runtime.driver.active.utils
    found = utilities.get_device_properties(device.index or 0)
    return Processors(int(found["multiprocessor_count"]), int(found["max_shared_mem"]))

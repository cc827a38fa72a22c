# SPDX-License-Identifier: Apache-2.0
"""What a launch has to fill: the multiprocessors of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Processors:
    """Multiprocessors of a GPU, and the shared memory that a block can have on one.

    ``overlaps``: a kernel can start while the one in front still runs (programmatic dependent
    launch).
    """

    count: int
    shared_bytes: int
    overlaps: bool = False


@cache
def processors_of(device: torch.device) -> Processors:
    """Those of the device; the interpreter on the CPU has one."""
    if device.type == "cpu":
        return Processors(1, 0)
    import triton

    driver = triton.runtime.driver.active
    found, target = (
        driver.utils.get_device_properties(device.index or 0),
        driver.get_current_target(),
    )
    return Processors(
        int(found["multiprocessor_count"]),
        int(found["max_shared_mem"]),
        target.backend == "cuda" and target.arch >= 90,
    )


def overlap_options(device: torch.device) -> dict[str, bool]:
    """Options of launches that may start while the kernel in front still runs, for kernels with a
    constant OVERLAPS that says so."""
    overlaps = processors_of(device).overlaps
    return {"OVERLAPS": overlaps, **({"launch_pdl": True} if overlaps else {})}

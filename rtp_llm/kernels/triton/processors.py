# SPDX-License-Identifier: Apache-2.0
"""The multiprocessors of a GPU, which a launch should fill."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Processors:
    """The number of multiprocessors of a GPU, and the shared memory available to a block.

    ``overlaps``: a kernel can start while the previous one still runs (programmatic dependent
    launch).
    """

    count: int
    shared_bytes: int
    overlaps: bool = False


@cache
def processors_of(device: torch.device) -> Processors:
    """The multiprocessors of `device`; the interpreter on the CPU counts as one."""
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
    """Launch options that let a kernel start while the previous one still runs.

    For kernels with a constant OVERLAPS, which reports whether the options are set.
    """
    overlaps = processors_of(device).overlaps
    return {"OVERLAPS": overlaps, **({"launch_pdl": True} if overlaps else {})}

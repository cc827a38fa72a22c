# SPDX-License-Identifier: Apache-2.0
"""The cores that are nearest to a device: those of its NUMA node, as Linux tells them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.device.base import Device

_logger = logging.getLogger("rtp_llm.engine")
_PCI = Path("/sys/bus/pci/devices")


def cores_of(address: str, devices: Path = _PCI) -> frozenset[int]:
    """Cores beside the device at a PCI `address` (0000:1b:00.0); none where nobody knows."""
    try:
        text = (devices / address / "local_cpulist").read_text()
    except OSError:
        return frozenset()
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def stay_near(device: Device) -> None:
    """Keep this thread, and those that it starts, on the cores nearest to `device`, so that what it
    allocates lies there too; within those that the process may run on."""
    allowed = os.sched_getaffinity(0)
    near = device.near_cores() & allowed
    if near and near != allowed:
        os.sched_setaffinity(0, near)
        _logger.info(
            "on the %d of %d cores beside %s", len(near), len(allowed), device.torch_device
        )

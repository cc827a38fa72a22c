# SPDX-License-Identifier: Apache-2.0
"""The cores nearest to a device: the cores of its NUMA node, as Linux reports it."""

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
    """Cores local to the device at a PCI `address` (0000:1b:00.0); empty if unknown."""
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
    """Pin this thread, and the threads it starts, to the allowed cores nearest to `device`.

    Memory that they allocate is then local to the device as well.
    """
    allowed = os.sched_getaffinity(0)
    near = device.near_cores() & allowed
    if near and near != allowed:
        os.sched_setaffinity(0, near)
        _logger.info(
            "on the %d of %d cores nearest to %s", len(near), len(allowed), device.torch_device
        )

# SPDX-License-Identifier: Apache-2.0
"""Devices: which one this process runs on, what it can do and how much memory it has.

This folder imports nothing else of the project, and only it may name a vendor's torch module.
Importing the package does not import torch, since `early` has to run before that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtp_llm.device.base import CAPABILITIES as CAPABILITIES
    from rtp_llm.device.base import Device as Device
    from rtp_llm.device.base import DeviceError as DeviceError
    from rtp_llm.device.base import Download as Download
    from rtp_llm.device.base import MemoryInfo as MemoryInfo
    from rtp_llm.device.base import Support as Support
    from rtp_llm.device.capabilities import Capabilities as Capabilities
    from rtp_llm.device.ranks import Ranks as Ranks
    from rtp_llm.device.resolve import DEVICE_VARIABLE as DEVICE_VARIABLE
    from rtp_llm.device.resolve import known_devices as known_devices
    from rtp_llm.device.resolve import resolve_device as resolve_device
    from rtp_llm.device.staging import StagedNumbers as StagedNumbers
    from rtp_llm.device.streams import Event as Event
    from rtp_llm.device.streams import Graph as Graph
    from rtp_llm.device.streams import Stream as Stream
    from rtp_llm.device.visible import VisibleDevices as VisibleDevices

_NAMES = {
    "base": ("CAPABILITIES", "Device", "DeviceError", "Download", "MemoryInfo", "Support"),
    "capabilities": ("Capabilities",),
    "ranks": ("Ranks",),
    "resolve": ("DEVICE_VARIABLE", "known_devices", "resolve_device"),
    "staging": ("StagedNumbers",),
    "streams": ("Event", "Graph", "Stream"),
    "visible": ("VisibleDevices",),
}
_PUBLIC = {name: f"rtp_llm.device.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'rtp_llm.device' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)

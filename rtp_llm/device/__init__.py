"""Devices: which one this process runs on, what it can do and how much memory it has.

This room imports nothing of the project; only it may name a vendor's torch module.
"""

from __future__ import annotations

from rtp_llm.device.base import (
    CAPABILITIES,
    Device,
    DeviceError,
    Download,
    MemoryInfo,
    Support,
)
from rtp_llm.device.ranks import Ranks
from rtp_llm.device.resolve import DEVICE_VARIABLE, known_devices, resolve_device
from rtp_llm.device.staging import StagedNumbers
from rtp_llm.device.streams import Event, Graph, Stream
from rtp_llm.device.visible import VisibleDevices

__all__ = [
    "CAPABILITIES",
    "DEVICE_VARIABLE",
    "Device",
    "DeviceError",
    "Download",
    "Event",
    "Graph",
    "MemoryInfo",
    "Ranks",
    "StagedNumbers",
    "Stream",
    "Support",
    "VisibleDevices",
    "known_devices",
    "resolve_device",
]

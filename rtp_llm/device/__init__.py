"""Devices: which one this process runs on, what it can do and how much memory it has.

This room imports nothing of the project; only it may name a vendor's torch module.
"""

from __future__ import annotations

from rtp_llm.device.base import CAPABILITIES, Device, MemoryInfo, Support
from rtp_llm.device.resolve import DEVICE_VARIABLE, DeviceError, known_devices, resolve_device

__all__ = [
    "CAPABILITIES",
    "DEVICE_VARIABLE",
    "Device",
    "DeviceError",
    "MemoryInfo",
    "Support",
    "known_devices",
    "resolve_device",
]

"""Which device this process uses: the user's word, else the device this wheel was built for."""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
from pathlib import Path

from rtp_llm.device.base import Device

DEVICE_VARIABLE = "RTP_LLM_DEVICE_TYPE"
_logger = logging.getLogger("rtp_llm.device")

# Name -> class, imported only when chosen. A device that has a name but no class yet is refused.
_CLASSES = {"cpu": "rtp_llm.device.cpu:CpuDevice"}
_NAMES = ("cpu", "cuda", "rocm", "xpu")

_lock = threading.Lock()
_resolved: dict[str, Device] = {}


class DeviceError(ValueError):
    """The device that was asked for cannot be used; the message says why and what to change."""


def known_devices() -> tuple[str, ...]:
    """Names that may be asked for, whether this installation has them or not."""
    return _NAMES


def resolve_device(requested: str | None = None) -> Device:
    """The device of this process, found once per request and then remembered.

    `requested` is a name of known_devices(); None or "auto" looks at RTP_LLM_DEVICE_TYPE, then
    takes the device this wheel was built for. Raises DeviceError when the choice cannot be used.
    """
    asked = _clean(requested)
    source = "device_type"
    if asked == "auto":
        asked, source = _clean(os.environ.get(DEVICE_VARIABLE)), DEVICE_VARIABLE
    with _lock:
        if asked not in _resolved:
            _resolved[asked] = _find(asked, source)
        return _resolved[asked]


def _clean(name: str | None) -> str:
    return (name or "").strip().lower() or "auto"


def _find(asked: str, source: str) -> Device:
    built = built_devices()
    if asked == "auto":
        device = _make(built[0])
        _mention_idle_accelerator(device)
        return device
    if asked not in _NAMES:
        raise DeviceError(f"{source}={asked!r} is not a device; valid: auto, {', '.join(_NAMES)}")
    if asked not in built or asked not in _CLASSES:
        raise DeviceError(
            f"{source}={asked}: this installation was built for {', '.join(built)}. Install the "
            f"{asked} wheel (./dev build {asked}), or set {source} to {' or '.join(built)}"
        )
    return _make(asked)


def _make(name: str) -> Device:
    module, _, attribute = _CLASSES[name].partition(":")
    device: Device = getattr(importlib.import_module(module), attribute)()
    available = device.available()
    if not available:
        raise DeviceError(f"device {name} cannot be used here: {available.reason}")
    return device


def built_devices(root: Path | None = None) -> tuple[str, ...]:
    """Devices of this installation, the preferred first: its wheel's own, then the CPU.

    A source tree has no _build.json: there every device that has a class counts.
    """
    record = (root or Path(__file__).parent.parent) / "_build.json"
    if not record.exists():
        return tuple(reversed(_CLASSES))
    name = str(json.loads(record.read_text())["device"])
    return (name,) if name == "cpu" else (name, "cpu")


def _mention_idle_accelerator(device: Device) -> None:
    idle = accelerators_present()
    if device.name == "cpu" and idle:
        _logger.warning(
            "serving on the CPU: this wheel was built for it, although the machine has %s",
            " and ".join(idle),
        )


def accelerators_present(root: Path = Path("/")) -> list[str]:
    """Kinds of GPU whose driver is loaded, told from device files alone: no vendor library."""
    found = []
    if any((root / "dev").glob("nvidia[0-9]*")):
        found.append("an NVIDIA GPU")
    if (root / "dev/kfd").exists():
        found.append("an AMD GPU")
    vendors = (root / "sys/class/drm").glob("renderD*/device/vendor")
    if any(vendor.read_text().strip() == "0x8086" for vendor in vendors):
        found.append("an Intel GPU")
    return found

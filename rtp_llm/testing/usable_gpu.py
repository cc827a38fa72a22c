"""The GPU that a test may use."""

from __future__ import annotations

from contextlib import suppress

from rtp_llm.device import Device, DeviceError, resolve_device


def usable_gpu(*names: str) -> Device | None:
    """The first of the devices `names` (all GPUs, if none) that this machine and build have."""
    for name in names or ("cuda", "rocm", "xpu"):
        with suppress(DeviceError):
            return resolve_device(name)
    return None


def usable_gpus() -> tuple[str, int]:
    """Their name, and how many processes may each have one of them; 0 without a usable one."""
    device = usable_gpu()
    return (device.name, device.device_count()) if device else ("", 0)

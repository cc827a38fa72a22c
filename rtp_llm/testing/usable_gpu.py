# SPDX-License-Identifier: Apache-2.0
"""The GPU that a test may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

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


@contextmanager
def host_never_waits() -> Iterator[None]:
    """Context in which operations that make the host wait for a CUDA or HIP device raise."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

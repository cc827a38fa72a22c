# SPDX-License-Identifier: Apache-2.0
"""Device initialisation that can start before torch is imported, which takes seconds."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rtp_llm.device.built import built_devices
from rtp_llm.device.ranks import Ranks

_KNOWN = ("cuda", "rocm", "xpu", "cpu")
_CUDA_DRIVER = "libcuda.so.1"


def start_driver(
    requested: str,
    environ: Mapping[str, str] = os.environ,
    built: Callable[[tuple[str, ...]], tuple[str, ...]] = built_devices,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> threading.Thread | None:
    """If this process will use CUDA, initialise the driver and create the context in a thread.

    Torch then uses this context. Failures are ignored here and left for torch to report.
    `requested` is the setting device_type; tests replace the other arguments.
    """
    wanted = requested.strip().lower()
    if wanted != "cuda" and not (wanted == "auto" and built(_KNOWN)[0] == "cuda"):
        return None
    thread = threading.Thread(target=_make_context, args=(environ, load), daemon=True)
    thread.start()
    return thread


def _make_context(environ: Mapping[str, str], load: Callable[[str], Any]) -> None:
    with suppress(OSError, ValueError):
        index = Ranks.read(environ).local_rank or 0
        driver = load(_CUDA_DRIVER)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

# SPDX-License-Identifier: Apache-2.0
"""A restarted engine waits until the memory of the dead engine is free again.

A driver frees it some time after the process is gone, and an earlier start would find less.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.device import Device

_VARIABLE = "RTP_LLM_AWAIT_FREE_BYTES"
# Other programs may have taken memory in the meantime: after this, start with what is free.
WAIT_SECONDS = 60.0
# The level never returns exactly: contexts of other processes come and go.
_NEAR = 0.98

_logger = logging.getLogger("rtp_llm.engine")


def await_memory_environment(free_bytes: int) -> dict[str, str]:
    """The variables that tell an engine process how much memory should be free; 0: unknown."""
    return {_VARIABLE: str(free_bytes)} if free_bytes else {}


def await_memory(device: Device, environ: Mapping[str, str] = os.environ) -> int:
    """Wait for the memory of the process that this one replaces, before anything is loaded.

    Returns the free bytes; 0 on a device that shares the host's memory.
    """
    wanted = int(int(environ.get(_VARIABLE, "0")) * _NEAR)
    began = time.monotonic()
    free = device.await_free_memory(wanted, WAIT_SECONDS)
    if wanted and free:
        seconds = time.monotonic() - began
        level = logging.INFO if free >= wanted else logging.WARNING
        text = "waited %.1f s for the memory of the dead engine: %d of %d MiB are free"
        _logger.log(level, text, seconds, free >> 20, wanted >> 20)
    return free

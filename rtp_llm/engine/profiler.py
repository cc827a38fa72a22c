# SPDX-License-Identifier: Apache-2.0
"""Traces of the engine process by torch.profiler: what the host does, and what its device does."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile, supported_activities

from rtp_llm.engine.profile_messages import Profiled, ProfilerError

if TYPE_CHECKING:
    from rtp_llm.device import Device

_logger = logging.getLogger("rtp_llm.engine")


class Profiler:
    """Records the thread that calls `start`, until it calls `stop`. One trace at a time."""

    def __init__(self, folder: Path, device: Device) -> None:
        """Traces are written to `folder`, which is made. Raises OSError if it cannot be used."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"--profiler-dir {folder}: this process may not write there")
        self._folder = folder
        wanted = {ProfilerActivity.CPU, device.profiler_activity}
        known = supported_activities()  # type: ignore[no-untyped-call]
        self._activities = sorted(wanted & known, key=str)
        if missing := wanted - set(self._activities):
            names = ", ".join(sorted(each.name for each in missing))
            _logger.warning("--profiler-dir: this PyTorch records no %s activity", names)
        self._running: profile | None = None

    def answer(self, *, start: bool) -> Profiled:
        """Start or stop; what is wrong is in the answer."""
        try:
            return self.start() if start else self.stop()
        except ProfilerError as error:
            return Profiled(error=str(error))
        except Exception as error:  # whatever the driver's tools do, the engine goes on
            _logger.exception("the profiler failed")
            return Profiled(error=f"{type(error).__name__}: {error}")

    def start(self) -> Profiled:
        """Raises ProfilerError if it runs, RuntimeError where the driver's tools refuse."""
        if self._running is not None:
            raise ProfilerError("the profiler runs already; stop it first")
        begun = profile(activities=self._activities)
        begun.start()
        self._running = begun
        return Profiled(activities=tuple(each.name for each in self._activities))

    def stop(self) -> Profiled:
        """Write the trace. Raises ProfilerError if none was started, OSError."""
        if self._running is None:
            raise ProfilerError("the profiler does not run; start it first")
        ended, self._running = self._running, None
        ended.stop()
        file = self._folder / f"rtp-llm-{os.getpid()}-{time.time_ns()}.pt.trace.json.gz"
        ended.export_chrome_trace(str(file))
        _logger.info("wrote %s", file)
        return Profiled(activities=tuple(each.name for each in self._activities), file=str(file))

# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine that a signal has stopped (SIGSTOP), as the kernel tells.

A silent process may just be waiting for a core, or hold the interpreter's lock while it loads. A
stopped process can be distinguished from it at once, however busy the machine is.
"""

from __future__ import annotations

import time
from pathlib import Path

LOOK_SECONDS = 0.25
# It must be stopped this long: stopping and continuing a whole group reaches one after another.
STOPPED_SECONDS = 0.75
STOPPED = "is stopped: a signal such as SIGSTOP holds it"
# A reader that looks less often was stopped itself, and all of its group with it.
_LATE_SECONDS = 3 * LOOK_SECONDS


class StopWatch:
    """Watches one process, for a reader that looks every LOOK_SECONDS or more often."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: float | None = None
        self._looked = time.monotonic()

    def look(self, now: float | None = None) -> bool:
        """Whether it has been stopped for STOPPED_SECONDS during which the reader was running."""
        now = time.monotonic() if now is None else now
        late, self._looked = now - self._looked > _LATE_SECONDS, now
        if not is_stopped(self._pid):
            self._since = None
        elif self._since is None or late:
            self._since = now
        return self._since is not None and now - self._since >= STOPPED_SECONDS


def is_stopped(pid: int) -> bool:
    """Whether the process exists and is stopped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return state.rpartition(b")")[2].split()[0] == b"T"

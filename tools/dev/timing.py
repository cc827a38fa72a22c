# SPDX-License-Identifier: Apache-2.0
"""How long each part of `./dev test` took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

# What the script `dev` took until Python ran: packages of the system.
_SETUP = "RTP_LLM_SETUP_SECONDS"


class PartTimes:
    """Wall-clock seconds of named parts, in the order in which they ended; parts may overlap."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        if _SETUP in os.environ:
            self._seconds["setup"] = float(os.environ[_SETUP])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block, also when it raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = time.monotonic() - begin

    def lines(self) -> Iterator[str]:
        """Format the table for a person; nothing for a single part."""
        if len(self._seconds) > 1:
            yield "time of each part:"
            for name, seconds in self._seconds.items():
                yield f"  {int(seconds) // 60:3}:{int(seconds) % 60:02}  {name}"

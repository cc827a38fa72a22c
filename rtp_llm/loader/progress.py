# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of loading weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rtp_llm.device import Device
from rtp_llm.terminal.terminal_bar import TerminalBar

# Called with the loaded bytes of the checkpoint, and the total.
Report = Callable[[int, int], None]

_logger = logging.getLogger("rtp_llm.loader")
_REDRAW_SECONDS = 0.1
_LOG_SECONDS = 10.0


class Progress(Protocol):
    """Receives the number of checkpoint bytes as they are loaded into the model."""

    def start(self, total: int) -> None:
        """Begin loading `total` bytes."""

    def advance(self, count: int) -> None:
        """Report that `count` more bytes are loaded."""

    def finish(self) -> None:
        """Report that all bytes are loaded."""


class LoadProgress:
    """A bar on a terminal, otherwise a log line every ten seconds; a final log line at the end.

    `report` is called whenever bytes arrive.
    """

    def __init__(
        self,
        device: Device,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        report: Report | None = None,
    ) -> None:
        self._device, self._clock, self._report = device, clock, report
        self._bar = TerminalBar(stream)
        self._total = self._done = 0
        self._started = self._shown = 0.0

    def start(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started = self._shown = self._clock()

    def advance(self, count: int) -> None:
        self._done += count
        if self._report is not None:
            self._report(self._done, self._total)
        on_terminal = self._bar.on_terminal
        now = self._clock()
        if now - self._shown < (_REDRAW_SECONDS if on_terminal else _LOG_SECONDS):
            return
        self._shown = now
        if on_terminal:
            self._bar.draw("loading weights", self._done, self._total, self._stats(now))
        else:
            _logger.info("loading weights: %s", self._stats(now))

    def finish(self) -> None:
        self._bar.erase()
        now = self._clock()
        _logger.info("loaded %s in %.1f s", self._stats(now), now - self._started)

    def _stats(self, now: float) -> str:
        rate = self._done / max(1e-3, now - self._started)
        share = 100 * self._done // max(1, self._total)
        return (
            f"{share}% of {_bytes(self._total)}, {_bytes(rate)}/s, "
            f"memory {_bytes(self._device.memory_used())}"
        )


class SilentProgress:
    """Progress that is not shown."""

    def start(self, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def finish(self) -> None:
        pass


def _bytes(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"

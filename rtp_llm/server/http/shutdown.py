# SPDX-License-Identifier: Apache-2.0
"""Graceful shutdown of a serving process: signals, and draining of open answers.

`rtp-llm serve` and `rtp-llm route` share it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Collection
from typing import Protocol

from rtp_llm.config.options import plain_number

POLL_SECONDS = 0.1
# Seconds for cut streams to write their last event.
CUT_SECONDS = 1.0
# `timeout`, terminals and wrappers may deliver one signal twice; no user repeats it that quickly.
SAME_SIGNAL_SECONDS = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Cuttable(Protocol):
    """An open answer that a shutdown may cut."""

    def cut(self) -> None:
        """End the answer with an error that the client sees."""


class Drainable(Protocol):
    """A component with open answers."""

    @property
    def answers(self) -> Collection[Cuttable]:
        """The open answers."""

    @property
    def answered(self) -> int:
        """Number of answers that ended by themselves, successfully or not."""

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait for open answers to end; returns False if some are left after `seconds`."""


class StopSignals:
    """The first signal requests a stop, the second a quick one, the third kills the process."""

    def __init__(self, logger: logging.Logger) -> None:
        self.stop = asyncio.Event()
        self.hurry = 0
        """Number of the signal that asked for a quick exit."""
        self.first = 0
        """Number of the signal that asked to stop."""
        self._log = logger
        self._signalled = 0.0

    def listen(self) -> None:
        """Handle SIGNALS on the running loop.

        A SIGHUP that was ignored at the start stays ignored, as `nohup` expects. An ignored SIGINT
        does not, as shells ignore it for every background job of a script.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def exit_code(self, code: int) -> int:
        """``code``, or 128 + n after a second signal n."""
        return 128 + self.hurry if self.hurry else code

    def _on_signal(self, number: int) -> None:
        if self.hurry:
            os._exit(128 + number)
        now = time.monotonic()
        first, self._signalled = self._signalled, self._signalled or now
        if first and now - first < SAME_SIGNAL_SECONDS:
            return
        if self.stop.is_set():
            self.hurry = number
            self._log.warning("second signal: stopping at once")
            return
        self._log.info("%s: stopping", signal.Signals(number).name)
        self.first = number
        self.stop.set()


async def drain(
    what: Drainable, seconds: float, signals: StopSignals, logger: logging.Logger
) -> int:
    """Let open answers finish for up to `seconds`, or until a second signal; cut the rest.

    Returns the number of answers that were cut, which is also logged.
    """
    waiting, before = len(what.answers), what.answered
    logger.info("draining %d open requests, for up to %s s", waiting, plain_number(seconds))
    deadline = time.monotonic() + seconds
    while what.answers and time.monotonic() < deadline and not signals.hurry:
        await what.wait_until_idle(POLL_SECONDS)
    finished = what.answered - before
    left = list(what.answers)
    for answer in left:
        answer.cut()
    await what.wait_until_idle(CUT_SECONDS)
    logger.info("drained: %d requests finished, %d cut", finished, len(left))
    return len(left)

# SPDX-License-Identifier: Apache-2.0
"""A time limit for Python code in the thread of an event loop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# Seconds to the next interruption: one inside a destructor or callback is lost and reported by a
# hook, which needs the time to finish.
_AGAIN_SECONDS = 1.0


class TakesTooLong(BaseException):
    """Time is up. A BaseException, so that the interrupted code does not handle it."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TimeLimit:
    """Interrupts the code that runs ``inside`` it after ``seconds`` by SIGALRM; costs 2 us.

    Native code is only interrupted when it returns to the interpreter. Only the main thread can be
    interrupted; in other threads there is no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._usable_in = threading.get_ident() if _in_main_thread() else None
        if self._usable_in is not None:
            signal.signal(signal.SIGALRM, self._interrupt)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._armed:  # otherwise it fired just after the end
            raise TakesTooLong

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Run code with the limit; raises TakesTooLong."""
        if threading.get_ident() != self._usable_in:
            yield  # the signal would interrupt the main thread instead
            return
        self._armed = True
        again = max(self._seconds, _AGAIN_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, again)
        try:
            yield
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

# SPDX-License-Identifier: Apache-2.0
"""Python code that is ended when it takes too long, in the thread that an event loop lives in."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# To the next interruption: one inside of a destructor or a callback is lost, and is reported by a
# hook, which has to come to its end.
_AGAIN_SECONDS = 1.0


class TakesTooLong(BaseException):
    """Of no type that the code inside would handle."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TimeLimit:
    """Ends what runs ``inside`` it after ``seconds`` of real time, by SIGALRM; costs 2 us.

    Code that does not return to the interpreter goes on until it does. Only the main thread can be
    interrupted so; in others there is no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._usable_in = threading.get_ident() if _in_main_thread() else None
        if self._usable_in is not None:
            signal.signal(signal.SIGALRM, self._interrupt)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._armed:  # else it came just after the end
            raise TakesTooLong

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Raises TakesTooLong."""
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

# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C: one line in place of tracebacks, and exit code 130.

Imports next to nothing, since it must work while everything else is being imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 128 + signal.SIGINT


@contextlib.contextmanager
def end_when_interrupted(program: str) -> Iterator[None]:
    """A context in which SIGINT ends the process with a line that names ``program``.

    It ends at once: an exception might be raised in the middle of an import, where other code may
    print it or replace it. So nothing may be open that the end of the process does not close.
    Shells start background jobs of scripts with SIGINT ignored; this works for them, too.
    """

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        os.write(2, f"{program}: interrupted\n".encode())
        os._exit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def children_leave_interrupts() -> Iterator[None]:
    """A context in which child processes start with SIGINT blocked.

    A terminal sends it to them, too, and a child that does not ignore it yet would print a
    traceback. A SIGINT to this process is delivered at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def brief_when_interrupted(doing: str) -> Iterator[None]:
    """A context in which an uncaught KeyboardInterrupt is reported as a single line."""
    try:
        yield
    except KeyboardInterrupt:
        interrupt = KeyboardInterrupt(f"interrupted while {doing}")
    else:
        return
    _report_briefly(interrupt)
    raise interrupt


def _report_briefly(interrupt: KeyboardInterrupt) -> None:
    before = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if error is interrupt:
            print(error, file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = report

# SPDX-License-Identifier: Apache-2.0
"""Lets any thread wake a thread that polls descriptors."""

from __future__ import annotations

import contextlib
import os


class Waker:
    """An eventfd that wakes a thread which polls descriptors."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make the descriptor readable; any thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable again; call this before looking for work."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

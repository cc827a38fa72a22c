# SPDX-License-Identifier: Apache-2.0
"""Streams, events and graphs as the core sees them, and those of a device that queues nothing.

torch's own stream and event classes fit these interfaces as they are.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Any = None) -> None:
        """Set the mark after the work that `stream` (None: the current one) has now."""

    def wait(self, stream: Any = None) -> None:
        """Let `stream` (None: the current one) go on only after the mark."""

    def query(self) -> bool:
        """The work before the mark is done."""

    def synchronize(self) -> None:
        """Wait for the work before the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this mark to `end_event`; both were made timed and are reached."""


class Stream(Protocol):
    """A queue of work that the device does in order."""

    def wait_event(self, event: Any) -> None:
        """Go on only after the mark."""

    def wait_stream(self, stream: Any) -> None:
        """Go on only after what `stream` has now."""

    def query(self) -> bool:
        """Everything is done."""

    def synchronize(self) -> None:
        """Wait for everything."""


class Graph(Protocol):
    """A captured sequence of kernels, replayed with one launch on the memory it was captured on."""

    @property
    def pool(self) -> object:
        """The memory that its intermediate results live in."""

    def capture(self, stream: Stream | None = None) -> AbstractContextManager[Any]:
        """Inside the context work is captured instead of done."""

    def replay(self) -> None:
        """Do the captured work on the current stream."""

    def release(self) -> None:
        """Forget the captured work, for good; replays that are under way end by themselves."""


class HostStream:
    """The queue of a device whose work is done before the call returns."""

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostEvent:
    """A mark that is reached when it is set."""

    def __init__(self) -> None:
        self._recorded = 0.0

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: HostEvent) -> float:
        return 1000 * (end_event._recorded - self._recorded)

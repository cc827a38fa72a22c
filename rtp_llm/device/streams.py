# SPDX-License-Identifier: Apache-2.0
"""Interfaces of streams, events and graphs, and implementations for synchronous devices.

torch's own stream and event classes satisfy these interfaces.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Any = None) -> None:
        """Record the event after the work queued on `stream` (None: the current one) so far."""

    def wait(self, stream: Any = None) -> None:
        """Make later work on `stream` (None: the current one) wait for the event."""

    def query(self) -> bool:
        """Whether the work before the event is done."""

    def synchronize(self) -> None:
        """Block until the work before the event is done."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`; both must be timed and completed."""


class Stream(Protocol):
    """A queue of work that the device does in order."""

    def wait_event(self, event: Any) -> None:
        """Make later work on this stream wait for `event`."""

    def wait_stream(self, stream: Any) -> None:
        """Make later work on this stream wait for the work queued on `stream` so far."""

    def query(self) -> bool:
        """Whether all queued work is done."""

    def synchronize(self) -> None:
        """Block until all queued work is done."""


class Graph(Protocol):
    """A captured sequence of kernels, replayed with one launch on the memory it was captured on."""

    @property
    def pool(self) -> object:
        """The memory pool of the graph's intermediate results."""

    def capture(self, stream: Stream | None = None) -> AbstractContextManager[Any]:
        """Return a context in which work is captured instead of executed."""

    def replay(self) -> None:
        """Do the captured work on the current stream."""

    def release(self) -> None:
        """Discard the captured work permanently; replays in progress still complete."""


class HostStream:
    """The queue of a device that finishes its work before a call returns."""

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

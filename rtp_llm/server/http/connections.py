# SPDX-License-Identifier: Apache-2.0
"""The open connections of a server: limits on their number and on their idle time."""

from __future__ import annotations

import collections
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.descriptors import lowest_free, share_descriptors
from rtp_llm.server.http.log import LimitedLog
from rtp_llm.server.types.errors import ApiError, unavailable

# Connections checked per turn of the event loop, as all of them may be late at once.
SWEEP_LOT = 64
# While the pool is full: the time a connection has for its TLS handshake, its first request or the
# error that it was sent, before it is closed for others; and how long the next one waits in the
# system for one of those being answered to end, before it is refused.
GRACE_SECONDS = 0.25
REFUSE_SECONDS = 1.0


class Connection(Protocol):
    """A connection as seen by the pool."""

    peer: str

    def check(self, now: float) -> None:
        """Close the connection if it has been idle for too long; ``now``: the loop's time."""

    def evict(self) -> None:
        """Close the connection, which waits for a complete request, to make room.

        It gets an error response, unless it is idle between two requests.
        """

    def refuse(self, reason: str, error: ApiError) -> None:
        """Answer with an error and close."""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionPool:
    """The connections of one listener. Belongs to an event loop.

    A connection is joining from its acceptance until its protocol has it, then waiting until it has
    sent a complete request, busy until that is answered, idle until the next one begins, and
    leaving from the moment it is closed until its descriptor is free. When the pool is full, one is
    closed for a new one: the one that has been idle longest, otherwise the one that has waited
    longest. So a client that sends its request at once is served, however many others hold
    connections open.
    """

    def __init__(self, settings: Settings, per_connection: int = 1) -> None:
        """``per_connection``: see share_descriptors."""
        self.settings = settings
        self.most, self.max_leaving, self.line = share_descriptors(settings, per_connection)
        self.open: set[Connection] = set()
        self.refused: collections.Counter[str] = collections.Counter()
        """Number of refused or cut connections, by reason."""
        self.on_room: Callable[[], None] | None = None
        """Called when `delay` may have become shorter; set while the listener waits for that."""
        self._granted: int | None = None  # as `most`, while descriptors are scarce
        self._full_since = math.inf
        self._joining: OrderedDict[Connection, tuple[float, Callable[[], object]]] = OrderedDict()
        self._waiting: OrderedDict[Connection, float] = OrderedDict()
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        self._leaving: OrderedDict[Connection, float] = OrderedDict()
        self._per_client: collections.Counter[str] = collections.Counter()
        self._log = LimitedLog(logging.getLogger("rtp_llm.server"))

    # -- new connections ---------------------------------------------------------------------------

    def delay(self) -> float:
        """Seconds until the next connection may be accepted, unless `on_room` is called before."""
        now = time.monotonic()
        if len(self._leaving) >= self.max_leaving:
            oldest, since = next(iter(self._leaving.items()))
            return _after_grace(since, now, oldest.abort)
        excess = self._active + 1 - self._room()
        if excess <= 0:
            self._full_since = math.inf
            return 0.0
        if excess > self.max_leaving:  # accepted, but not yet added
            return self._after_joining(now)
        if excess <= len(self._idle):
            self._full_since = math.inf
            return 0.0
        last = next(islice(self._waiting.values(), excess - len(self._idle) - 1, None), now)
        if last + GRACE_SECONDS <= now:
            self._full_since = math.inf
            return 0.0
        if self._joining:
            return min(self._after_joining(now), last + GRACE_SECONDS - now)
        if self._waiting:
            return last + GRACE_SECONDS - now
        self._full_since = min(self._full_since, now)
        return max(0.0, self._full_since + REFUSE_SECONDS - now)

    @property
    def crowded(self) -> bool:
        """Whether clients wait to be accepted, so that no connection should be kept idle."""
        return self.on_room is not None

    def scarce(self) -> None:
        """Accept no more for now: all descriptors below the line are used."""
        if self._granted is None:
            self._granted = self._active

    def join(self, connection: Connection, cancel: Callable[[], object]) -> None:
        """Count an accepted connection, until `add` or `drop`; ``cancel`` ends its handshake."""
        self._joining[connection] = time.monotonic(), cancel

    def drop(self, connection: Connection) -> None:
        """Forget an accepted connection that was not added."""
        if self._joining.pop(connection, None) is not None:
            self._notify()

    def add(self, connection: Connection) -> None:
        """Add a new connection; it or another one may be refused to stay within the limits."""
        self._joining.pop(connection, None)
        self.open.add(connection)
        self._waiting[connection] = time.monotonic()
        self._per_client[connection.peer] += 1
        most = self.settings.max_connections_per_client
        if most and connection.peer and self._per_client[connection.peer] > most:
            text = f"{most} connections of this address are open (see --max-connections-per-client)"
            connection.refuse("per_client", unavailable(text + "; try again.", "overloaded"))
        else:
            self._make_room(connection)
        self._notify()

    def _make_room(self, newest: Connection) -> None:
        room = self.most if self._granted is None else self._granted
        while self._active > room:
            oldest = next(iter(self._idle or self._waiting))
            if oldest is newest:
                newest.refuse("connections", unavailable(self._full_text(room), "overloaded"))
                return
            self.leave(oldest)
            oldest.evict()

    @property
    def _active(self) -> int:
        return len(self.open) + len(self._joining) - len(self._leaving)

    def _room(self) -> int:
        """The number of connections that may be active now."""
        if self._granted is None:
            return self.most
        free = self.line - lowest_free()
        self._granted = self._active + free if free > 0 else min(self._granted, self._active)
        if self._granted >= self.most:
            self._granted = None
            return self.most
        return self._granted

    def _after_joining(self, now: float) -> float:
        since, cancel = next(iter(self._joining.values()))
        return _after_grace(since, now, cancel)

    def _full_text(self, room: int) -> str:
        if self._granted is None and room == self.settings.max_connections:
            return f"{room} connections are open (see --max-connections); try again."
        return f"{room} connections are open, as many as the system grants (ulimit -n); try again."

    def _notify(self) -> None:
        if self.on_room is not None:
            self.on_room()

    # -- the life of a connection ------------------------------------------------------------------

    def begin(self, connection: Connection) -> None:
        """Mark the connection as waiting: a request begins."""
        if connection in self._idle:
            del self._idle[connection]
            self._waiting[connection] = time.monotonic()

    def busy(self, connection: Connection) -> None:
        """Mark the connection as busy: a complete request is being answered."""
        self._waiting.pop(connection, None)
        self._idle.pop(connection, None)

    def rest(self, connection: Connection) -> None:
        """Mark the connection as idle: everything was answered."""
        if connection in self.open and connection not in self._leaving:
            self._waiting.pop(connection, None)
            self._idle[connection] = None
            self._idle.move_to_end(connection)
            self._notify()

    def leave(self, connection: Connection) -> None:
        """Mark the connection as leaving: it is closed as soon as its client has read that."""
        self.busy(connection)
        if connection in self.open:
            self._leaving.setdefault(connection, time.monotonic())

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection in self.open:
            self.busy(connection)
            self.open.discard(connection)
            self._leaving.pop(connection, None)
            left = self._per_client[connection.peer] - 1
            self._per_client[connection.peer] = left
            if not left:
                del self._per_client[connection.peer]
        self._notify()

    def sweep(self, now: float) -> Iterator[None]:
        """Check every connection, in batches; called a few times per second."""
        for number, connection in enumerate(list(self.open), 1):
            if connection in self.open:
                connection.check(now)
            if number % SWEEP_LOT == 0:
                yield

    def count(self, reason: str, peer: str, text: str = "") -> None:
        """Count and log a refused or cut connection; the log is rate-limited."""
        self.refused[reason] += 1
        self._log.warning(reason, "%s: %s", peer or "a client", text or reason)


def _after_grace(since: float, now: float, end: Callable[[], object]) -> float:
    """End a connection if its grace is over; returns the seconds until there may be room."""
    left = since + GRACE_SECONDS - now
    if left <= 0:
        end()
    return max(left, 0.01)

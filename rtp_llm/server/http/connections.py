# SPDX-License-Identifier: Apache-2.0
"""The open connections of a server: limits on their number and on their idle time."""

from __future__ import annotations

import collections
import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.descriptors import share_descriptors
from rtp_llm.server.http.log import LimitedLog
from rtp_llm.server.types.errors import ApiError, unavailable

# Connections checked per turn of the event loop, as all of them may be late at once.
SWEEP_LOT = 64


class Connection(Protocol):
    """A connection as seen by the pool."""

    peer: str

    def check(self, now: float) -> None:
        """Close the connection if it has been idle for too long; ``now``: the loop's time."""

    def evict(self) -> None:
        """Close the connection, which waits for a complete request, to make room.

        A connection that has not had a request yet gets an error response, as it may be about to
        send its first request.
        """

    def refuse(self, reason: str, error: ApiError) -> None:
        """Answer with an error and close."""


class ConnectionPool:
    """The connections of one listener. Belongs to an event loop.

    A connection is waiting while none of its requests is being answered. When the pool is full,
    the connection that has waited longest is closed for a new one. So a client that sends its
    request at once is served, however many others hold connections open.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.most, self.backlog = share_descriptors(settings)
        self.open: set[Connection] = set()
        self.refused: collections.Counter[str] = collections.Counter()
        """Number of refused or cut connections, by reason."""
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._per_client: collections.Counter[str] = collections.Counter()
        self._log = LimitedLog(logging.getLogger("rtp_llm.server"))

    def add(self, connection: Connection) -> None:
        """Add a new connection; it or another one may be refused to stay within the limits."""
        self.open.add(connection)
        self._waiting[connection] = None
        self._per_client[connection.peer] += 1
        most = self.settings.max_connections_per_client
        if most and connection.peer and self._per_client[connection.peer] > most:
            text = f"{most} connections of this address are open (see --max-connections-per-client)"
            connection.refuse("per_client", unavailable(text + "; try again.", "overloaded"))
        while len(self.open) > self.most:
            oldest = next(iter(self._waiting))
            if oldest is connection:
                text = f"{self.most} connections are open (see --max-connections); try again."
                connection.refuse("connections", unavailable(text, "overloaded"))
                return
            self.count("evicted", oldest.peer)
            self.remove(oldest)
            oldest.evict()

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection not in self.open:
            return
        self.open.discard(connection)
        self._waiting.pop(connection, None)
        left = self._per_client[connection.peer] - 1
        self._per_client[connection.peer] = left
        if not left:
            del self._per_client[connection.peer]

    def busy(self, connection: Connection) -> None:
        """Mark the connection as busy: a complete request is being answered."""
        self._waiting.pop(connection, None)

    def rest(self, connection: Connection, *, first: bool = False) -> None:
        """Mark the connection as waiting for a request; ``first``: it is evicted first."""
        if connection in self.open:
            self._waiting[connection] = None
            self._waiting.move_to_end(connection, last=not first)

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

# SPDX-License-Identifier: Apache-2.0
"""The open connections of a server: how many there may be, and for how long each may do nothing."""

from __future__ import annotations

import collections
import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from rtp_llm.config.settings import Settings
from rtp_llm.server.errors import ApiError, unavailable
from rtp_llm.server.http.descriptors import share_descriptors
from rtp_llm.server.http.log import LimitedLog

# Connections that a sweep looks at in one turn of the loop: all of them may be late at once.
SWEEP_LOT = 64


class Connection(Protocol):
    """What the pool knows about a connection."""

    peer: str

    def check(self, now: float) -> None:
        """Close it if it has done nothing for too long; ``now``: the loop's time."""

    def evict(self) -> None:
        """Make room at once: it waits for a request that has not come in whole.

        One that has not had any request yet is answered, as it may be about to send its first.
        """

    def refuse(self, reason: str, error: ApiError) -> None:
        """Answer with an error and close."""


class ConnectionPool:
    """Connections of one listener. Belongs to an event loop.

    A connection waits while no whole request of it is being answered. When there is no room, the
    one that has waited longest makes way for a new one: a client that sends its request at once is
    served, however many others hold their connections open.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.most, self.backlog = share_descriptors(settings)
        self.open: set[Connection] = set()
        self.refused: collections.Counter[str] = collections.Counter()
        """Connections that were refused or cut, by reason."""
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._per_client: collections.Counter[str] = collections.Counter()
        self._log = LimitedLog(logging.getLogger("rtp_llm.server"))

    def add(self, connection: Connection) -> None:
        """Take a new connection; it, or another one, may be refused for it."""
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
        """It is closed."""
        if connection not in self.open:
            return
        self.open.discard(connection)
        self._waiting.pop(connection, None)
        left = self._per_client[connection.peer] - 1
        self._per_client[connection.peer] = left
        if not left:
            del self._per_client[connection.peer]

    def busy(self, connection: Connection) -> None:
        """A whole request of it is being answered."""
        self._waiting.pop(connection, None)

    def rest(self, connection: Connection, *, first: bool = False) -> None:
        """It waits for the next request; with ``first`` it is the first to make way."""
        if connection in self.open:
            self._waiting[connection] = None
            self._waiting.move_to_end(connection, last=not first)

    def sweep(self, now: float) -> Iterator[None]:
        """Look at every connection, as many at a time; called a few times a second."""
        for number, connection in enumerate(list(self.open), 1):
            if connection in self.open:
                connection.check(now)
            if number % SWEEP_LOT == 0:
                yield

    def count(self, reason: str, peer: str, text: str = "") -> None:
        """Count a connection that was refused or cut, and log it, but not every one of a flood."""
        self.refused[reason] += 1
        self._log.warning(reason, "%s: %s", peer or "a client", text or reason)

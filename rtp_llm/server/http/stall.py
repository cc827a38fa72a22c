# SPDX-License-Identifier: Apache-2.0
"""How long a client has read nothing of an answer that waits for it."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

# Bytes that the system takes for a connection and has not sent: what it has taken is lost to us,
# and as much of an answer is made for a client that reads nothing.
MAX_UNSENT = 2**16

# Of struct tcp_info: packets in flight, bytes acknowledged and bytes not sent yet.
_IN_FLIGHT, _ACKNOWLEDGED, _UNSENT = ("=I", 24), ("=Q", 120), ("=I", 144)
_INFO_BYTES = 148


class Progress(NamedTuple):
    """``waits``: there are bytes that the client has not taken; ``taken`` changes as it does."""

    waits: bool
    taken: int


def ask_system(connection: socket.socket) -> Progress | None:
    """How far the bytes that a TCP socket took have got; None where the system does not say."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return None
    in_flight, acknowledged, unsent = (
        struct.unpack_from(form, info, at)[0] for form, at in (_IN_FLIGHT, _ACKNOWLEDGED, _UNSENT)
    )
    return Progress(bool(in_flight or unsent), acknowledged)


class Stall:
    """The clock of one connection, in the loop's time."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._taken = 0

    def look(self, now: float, progress: Progress) -> float:
        """For how many seconds nothing was taken; the clock begins when something first waits."""
        if self._since is None or not progress.waits or progress.taken != self._taken:
            self._since = now if progress.waits else None
            self._taken = progress.taken
        return 0.0 if self._since is None else now - self._since

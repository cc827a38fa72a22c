# SPDX-License-Identifier: Apache-2.0
"""Ends a connection to another worker when its machine, or the network to it, is gone."""

from __future__ import annotations

import socket

# A machine that acknowledges nothing for this long is gone.
_DEAD_AFTER_MILLISECONDS = 10_000


def end_with_peer(connected: socket.socket) -> None:
    """Let the system probe the other machine every two seconds; reads and writes of a TCP
    connection fail with OSError once it has acknowledged nothing for ten seconds.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MILLISECONDS)

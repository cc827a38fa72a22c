# SPDX-License-Identifier: Apache-2.0
"""Reserves a port of this machine for a test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """A port on which nothing listens until the test starts a server, possibly several times.

    It stays bound, so the system does not assign it to another program. A program that requests it
    by number still gets it if it sets SO_REUSEADDR, as servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])

# SPDX-License-Identifier: Apache-2.0
"""A port of this machine that nobody else gets while a test needs it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """One where nobody listens until a server of the test does, and then perhaps another one.

    It is bound all the time, so the system gives it to no other program. Who asks for it by its
    number may have it all the same, as long as he sets SO_REUSEADDR, as servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])

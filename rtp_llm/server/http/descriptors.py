# SPDX-License-Identifier: Apache-2.0
"""How the file descriptors of the process are shared out among connections."""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.start_error import StartError

# Backlog of connections to accept, if the system allows it (net.core.somaxconn). A connection that
# does not fit is retried by the client's system, but only after a second.
BACKLOG = 8192
# Descriptors reserved for files, the engine and the log.
_OTHERS = 256
_FEWEST = 64


class Shares(NamedTuple):
    """``most``: connections that may be open. ``backlog``: connections that may wait; all are
    accepted at once, and one without a free descriptor is closed without an answer."""

    most: int
    backlog: int


def share_descriptors(settings: Settings) -> Shares:
    """Raise the descriptor limit as far as connections need it; returns their shares."""
    soft = _raise_limit(settings.max_connections + BACKLOG + _OTHERS)
    if soft == resource.RLIM_INFINITY:
        return Shares(settings.max_connections, BACKLOG)
    free = max(2, soft - min(_OTHERS, soft // 2))
    backlog = min(BACKLOG, max(free // 4, free - settings.max_connections))
    return Shares(min(settings.max_connections, free - backlog), backlog)


def check_descriptors() -> None:
    """Raise StartError if the system grants too few descriptors to start."""
    if 0 <= _raise_limit(_FEWEST) < _FEWEST:
        granted = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise StartError(
            f"this process may open {granted} files, a server needs at least {_FEWEST}: raise "
            "`ulimit -n` (LimitNOFILE of systemd, --ulimit nofile of docker)"
        )


def _raise_limit(wanted: int) -> int:
    """Raise the limit of open files towards `wanted` and return it; -1: unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft

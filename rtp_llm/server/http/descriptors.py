# SPDX-License-Identifier: Apache-2.0
"""File descriptors that the system grants, for connections that are open and that wait."""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.start_error import StartError

# Connections that wait to be accepted, if the system allows as many (net.core.somaxconn). One that
# finds no place there is tried again by its client's system, but only after a second.
BACKLOG = 8192
# Descriptors that are kept for files, the engine and the log.
_OTHERS = 256
_FEWEST = 64


class Shares(NamedTuple):
    """``most``: connections that may be open. ``backlog``: those that may wait; all of them are
    accepted at once, and one that finds no descriptor then is closed without an answer."""

    most: int
    backlog: int


def share_descriptors(settings: Settings) -> Shares:
    """Let this process have the descriptors that its connections need; what they may take."""
    soft = _raise_limit(settings.max_connections + BACKLOG + _OTHERS)
    if soft == resource.RLIM_INFINITY:
        return Shares(settings.max_connections, BACKLOG)
    free = max(2, soft - min(_OTHERS, soft // 2))
    backlog = min(BACKLOG, max(free // 4, free - settings.max_connections))
    return Shares(min(settings.max_connections, free - backlog), backlog)


def check_descriptors() -> None:
    """Raise StartError where the system grants too few to begin with."""
    if 0 <= _raise_limit(_FEWEST) < _FEWEST:
        granted = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise StartError(
            f"this process may open {granted} files, a server needs at least {_FEWEST}: raise "
            "`ulimit -n` (LimitNOFILE of systemd, --ulimit nofile of docker)"
        )


def _raise_limit(wanted: int) -> int:
    """The limit of open files, as near to `wanted` as it can be had; -1: there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft

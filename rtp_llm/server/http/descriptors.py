# SPDX-License-Identifier: Apache-2.0
"""How the file descriptors of the process are shared out among connections."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import NamedTuple

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.start_error import StartError

# Connections that may wait in the system to be accepted, if it allows it (net.core.somaxconn). One
# that does not fit is retried by the client's system, but only after a second.
BACKLOG = 8192
_FEWEST = 64
# Descriptors reserved, if there are enough: a quarter of them for connections that are closing, the
# others for files and the engine, whose restart takes a dozen.
_RESERVE = 1024


class Shares(NamedTuple):
    """``most``: connections that may be open, apart from ``leaving`` ones that were refused or are
    closing. ``line``: no connection is accepted while all descriptors below this number are used.
    """

    most: int
    leaving: int
    line: int


def share_descriptors(settings: Settings, per_connection: int = 1) -> Shares:
    """Raise the descriptor limit as far as connections need it; returns their shares.

    ``per_connection``: descriptors that each connection takes, with those that it makes the
    process open.
    """
    most = settings.max_connections
    soft = _raise_limit(most * per_connection + _RESERVE + _FEWEST)
    if soft == resource.RLIM_INFINITY:
        return Shares(most, _RESERVE // 4, sys.maxsize)
    reserve = min(_RESERVE, soft // 4)
    line = soft - reserve
    fitting = (line - lowest_free()) // per_connection
    return Shares(max(1, min(most, fitting)), max(1, reserve // 4), line)


def lowest_free() -> int:
    """The lowest unused descriptor, which the next connection will have."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return sys.maxsize
    os.close(descriptor)
    return descriptor


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

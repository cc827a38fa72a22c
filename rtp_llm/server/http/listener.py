"""The socket on which the server listens."""

from __future__ import annotations

import errno
import socket

from rtp_llm.config.roles import join_address
from rtp_llm.config.settings import Settings

# Connections that wait to be accepted, if the system allows as many (net.core.somaxconn). One that
# finds no place there is tried again by its client's system, but only after a second.
BACKLOG = 8192
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class StartError(RuntimeError):
    """The server cannot start; the message says what to change."""


def bind(settings: Settings) -> socket.socket:
    """The listening socket; raises StartError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        place = join_address(settings.host, settings.port)
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"{place} is in use by another program; stop that one, or choose another port "
                "with --port (0 takes a free one)"
            ) from error
        reason = error.strerror or error
        raise StartError(f"cannot listen on {place}: {reason} (--host, --port)") from error


def url_of(listener: socket.socket) -> str:
    """An address that works from this machine, also when the server listens on all of them."""
    host, port = listener.getsockname()[:2]
    return f"http://{join_address(_LOOPBACK.get(host, host), port)}"

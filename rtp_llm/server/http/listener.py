# SPDX-License-Identifier: Apache-2.0
"""The server's listening socket."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from rtp_llm.config.roles import join_address
from rtp_llm.config.settings import Settings
from rtp_llm.server.http.descriptors import BACKLOG, check_descriptors
from rtp_llm.server.http.stall import MAX_UNSENT
from rtp_llm.server.http.start_error import StartError
from rtp_llm.server.http.tls import server_context

UNIX = "unix:"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def bind(settings: Settings) -> socket.socket:
    """Open the listening socket; raises StartError if the address or TLS files are unusable."""
    check_descriptors()
    server_context(settings)
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG
        )
        with contextlib.suppress(OSError):  # its connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT)
        return listener
    except OSError as error:
        place = join_address(settings.host, settings.port)
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"{place} is in use by another program; stop that one, or choose another port "
                "with --port (0 takes a free one)"
            ) from error
        reason = error.strerror or error
        raise StartError(f"cannot listen on {place}: {reason} (--host, --port)") from error


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_left_over(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise StartError(f"cannot listen on {path}: {reason} (--uds)") from error
    except StartError:
        listener.close()
        raise
    return listener


def _remove_left_over(path: str) -> None:
    """Remove the stale Unix socket of a killed server."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StartError(f"{path} is there, and is not a socket; choose another --uds")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    raise StartError(
        f"{path} is in use by another program; stop that one, or choose another path with --uds"
    )


def close(listener: socket.socket) -> None:
    """Close the listening socket."""
    remove_path(listener)
    listener.close()


def remove_path(listener: socket.socket) -> None:
    """Remove the path of a Unix socket that is still open."""
    if listener.fileno() >= 0 and listener.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            os.unlink(listener.getsockname())


def url_of(listener: socket.socket, settings: Settings) -> str:
    """A URL that works on this machine, even if the server listens on all addresses."""
    if settings.uds is not None:
        return UNIX + settings.uds
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://{join_address(_LOOPBACK.get(host, host), port)}"

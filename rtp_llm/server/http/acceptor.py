# SPDX-License-Identifier: Apache-2.0
"""Accepts connections as long as there is room for them; the others wait in the system."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from rtp_llm.server.http.connection import HttpProtocol
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.log import LimitedLog

# Connections accepted per turn of the event loop.
LOT = 64
# Seconds before another attempt after the system refused one, which it does for want of descriptors
# or memory.
RETRY_SECONDS = 0.25
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts from a listening socket, on the running loop, for a pool of connections.

    asyncio and libuv accept whatever comes, and without a descriptor close it unanswered.
    """

    def __init__(
        self,
        listener: socket.socket,
        pool: ConnectionPool,
        make: Callable[[], HttpProtocol],
        tls: ssl.SSLContext | None = None,
        handshake_seconds: float | None = None,
    ) -> None:
        self._listener, self._pool, self._make = listener, pool, make
        self._tls, self._handshake_seconds = tls, handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logging.getLogger("rtp_llm.server"))
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept_some)

    def close(self) -> None:
        """Accept no more, and drop what is in a handshake."""
        self._loop.remove_reader(self._listener)
        self._end_pause()
        for task in self._joining:
            task.cancel()

    def _accept_some(self) -> None:
        for number in range(LOT):
            seconds = self._pool.delay()
            if seconds > 0:
                if number == 0:  # otherwise nobody else may wait
                    self._pause(seconds)
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                self._log.warning("accept", "cannot accept connections: %s", error.strerror)
                self._pool.scarce()
                self._pause(RETRY_SECONDS)
                return
            last = connection.fileno()
            self._begin(connection)
            if last >= self._pool.line:
                self._pool.scarce()

    def _begin(self, connection: socket.socket) -> None:
        protocol = self._make()
        task = self._loop.create_task(self._join(connection, protocol))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)
        self._pool.join(protocol, task.cancel)

    async def _join(self, connection: socket.socket, protocol: HttpProtocol) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except OSError:
            pass  # the client is gone, or does not speak TLS
        finally:
            self._pool.drop(protocol)

    # -- while there is no room --------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pool.on_room = self._resume_soon
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume_soon(self) -> None:
        """Resume after this turn of the loop, when a connection that is lost now is closed."""
        self._end_pause()
        self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._end_pause()
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept_some)

    def _end_pause(self) -> None:
        self._pool.on_room = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

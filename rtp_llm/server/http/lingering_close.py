# SPDX-License-Identifier: Apache-2.0
"""The end of a connection: what was answered is read, whatever of the request was not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# What is taken of a request after its answer, and for how long.
LINGER_BYTES = 64 * 2**20
LINGER_SECONDS = 5.0


class LingeringProtocol(HttpToolsProtocol):
    """uvicorn's, that closes later where an answer came before the request's end.

    The system resets a connection that is closed with something unread in it, and the other side
    loses the answer. So only our half is closed at first, and what still comes is dropped.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """uvicorn sees the transport but for how it is closed."""
        self._left = LINGER_BYTES
        self._end: asyncio.TimerHandle | None = None
        self._wire = cast(asyncio.Transport, transport)
        super().connection_made(cast(asyncio.Transport, _Closed(self._wire, self)))

    def data_received(self, data: bytes) -> None:
        """A request, or what is left of one that was answered."""
        if self._end is None:
            super().data_received(data)
            return
        self._left -= len(data)
        if self._left < 0:
            self._wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    @property
    def lingers(self) -> bool:
        """Our half is closed."""
        return self._end is not None

    @property
    def unread(self) -> bool:
        """The client may still be sending."""
        return self.cycle is not None and self.cycle.more_body

    def close(self) -> None:
        """What was written is sent; the second time it is over."""
        if not self.unread or self.lingers or self._wire.is_closing():
            self._wire.close()
            return
        self.linger()

    def linger(self) -> None:
        """Close our half, and drop what still comes."""
        self._end = self.loop.call_later(LINGER_SECONDS, self._wire.close)
        if self._wire.can_write_eof():  # TLS has no half: the answer's length says where it ends
            self._wire.write_eof()
        self.flow.resume_reading()


class _Closed:
    """A transport that its protocol closes."""

    def __init__(self, wire: asyncio.Transport, protocol: LingeringProtocol) -> None:
        self._wire, self._protocol = wire, protocol
        self.close = protocol.close
        self.write = wire.write  # called for every piece of a stream

    def is_closing(self) -> bool:
        """Nothing more can be written."""
        return self._protocol.lingers or self._wire.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

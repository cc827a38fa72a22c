# SPDX-License-Identifier: Apache-2.0
"""Lingering close: clients can read an answer that came before the end of their request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes to read of a request after its answer, and for how many seconds.
LINGER_BYTES = 64 * 2**20
LINGER_SECONDS = 5.0


class LingeringProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but delays the close if an answer came before the end of the request.

    The system resets a connection that is closed with unread data, and the client then loses the
    answer. So at first only our half is closed, and further input is discarded.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wrap the transport, so that uvicorn's close goes through this class."""
        self._left = LINGER_BYTES
        self._end: asyncio.TimerHandle | None = None
        self._wire = cast(asyncio.Transport, transport)
        super().connection_made(cast(asyncio.Transport, _Closed(self._wire, self)))

    def data_received(self, data: bytes) -> None:
        """Receive a request, or discard the rest of one that was answered."""
        if self._end is None:
            super().data_received(data)
            return
        self._left -= len(data)
        if self._left < 0:
            self._wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; stop lingering."""
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    @property
    def lingers(self) -> bool:
        """Whether our half is closed."""
        return self._end is not None

    def begins_answer(self) -> bool:
        """Whether what is written now is the head of an answer whose body follows in one piece or
        several, of known length."""
        return False

    @property
    def unread(self) -> bool:
        """Whether the client may still be sending."""
        return self.cycle is not None and self.cycle.more_body

    def close(self) -> None:
        """Send what was written, then close, lingering if the client may still be sending."""
        if not self.unread or self.lingers or self._wire.is_closing():
            self._wire.close()
            return
        self.linger()

    def linger(self) -> None:
        """Close our half and discard further input."""
        self._end = self.loop.call_later(LINGER_SECONDS, self._wire.close)
        if self._wire.can_write_eof():  # TLS has no half-close: the answer's length marks its end
            self._wire.write_eof()
        self.flow.resume_reading()


class _Closed:
    """A transport whose close is handled by its protocol.

    The head of an answer of known length is sent along with the first piece of its body.
    """

    def __init__(self, wire: asyncio.Transport, protocol: LingeringProtocol) -> None:
        self._wire, self._protocol = wire, protocol
        self._head = b""

    def write(self, data: bytes) -> None:
        """Send a head, or a piece of a body."""
        if self._head:
            data, self._head = self._head + data, b""
        elif self._protocol.begins_answer():
            self._head = data
            return
        self._wire.write(data)

    def close(self) -> None:
        """Send what is held back, and close."""
        if self._head:
            self._wire.write(self._head)
            self._head = b""
        self._protocol.close()

    def is_closing(self) -> bool:
        """Whether no more can be written."""
        return self._protocol.lingers or self._wire.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

# SPDX-License-Identifier: Apache-2.0
"""A connection that carries messages both ways and never makes the engine's thread wait."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from rtp_llm.config.roles import join_address
from rtp_llm.disagg.wire.message_loop import LoopConnection, MessageLoop
from rtp_llm.disagg.wire.messages import LONGEST_HELLO, LONGEST_MESSAGE
from rtp_llm.net.keepalive import end_with_peer

In = TypeVar("In")

_LENGTH = struct.Struct("!i")
# A peer with this many unread messages reads none, however alive its end of the wire is.
_MAX_UNSENT = 65_536


class MessageConnection(LoopConnection, Generic[In]):
    """Messages over a connected socket, as multiprocessing frames them: length, then msgpack.

    ``deliver(connection, message)`` is called on the loop's thread, which it must not block; with
    None as the last message when the other side is gone. A peer that reads nothing is disconnected,
    and so is one that sends more than a handshake before ``trust``.
    """

    def __init__(
        self,
        loop: MessageLoop,
        connected: socket.socket,
        incoming: Any,
        deliver: Callable[[MessageConnection[In], In | None], None],
        handshake: msgspec.Struct | None = None,
        longest_handshake: int = LONGEST_HELLO,
        heard: In | None = None,
    ) -> None:
        """``incoming``: the type, or union of types, of what is received. ``handshake`` goes out
        first: other threads may send as soon as ``deliver`` has heard of the connection.
        ``longest_handshake``: bytes of the other side's. ``heard``: what was read of it before, to
        be delivered first.

        Raises OSError when it is gone, RuntimeError when the loop is closed.
        """
        self.peer = join_address(*connected.getpeername()[:2])
        _tune(connected)
        self._loop = loop
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._deliver = deliver
        self._longest = longest_handshake
        self._heard = heard
        self.heard_bytes = 0  # size of the message last passed to ``deliver``
        self._received = bytearray()
        self._outgoing: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None
        self._ended = self._paused = False
        self._blocked = True  # nothing can be written
        if handshake is not None:
            self._queue(handshake)
        loop.connect(self, connected)

    def trust(self) -> None:
        """Accept messages of any length from now on: the handshake is complete."""
        self._longest = LONGEST_MESSAGE

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; if the other side never gets it, the connection ends."""
        if len(self._outgoing) >= _MAX_UNSENT:
            self.close()
            return
        self._queue(message)
        self._post(self._flush)

    def close(self) -> None:
        """End the connection in both directions; the other side and ``deliver`` are notified."""
        self._post(self.abort)

    def pause(self) -> None:
        """Called by ``deliver``: receive nothing before ``resume``, which any thread may call."""
        self._paused = True

    def resume(self) -> None:
        """Deliver what has arrived, and continue to receive."""
        self._post(self._resume)

    # -- the loop's thread ---------------------------------------------------------------------

    def abort(self) -> None:
        """End the connection now."""
        self._ended = True
        if self._transport is not None:
            with contextlib.suppress(OSError):  # an end, where a mere close may be a reset
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._blocked = transport, False
        self._flush()
        if self._heard is not None:
            self._deliver(self, self._heard)
        if self._ended:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        self._take_frames()

    def eof_received(self) -> None:
        """See asyncio."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._ended = True
        self._loop.end(self)
        self._deliver(self, None)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._blocked = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._blocked = False
        self._flush()

    def _post(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop's end is its own
            self._loop.post(work)

    def _queue(self, message: msgspec.Struct) -> None:
        frame = self._encoder.encode(message)
        self._outgoing.append(_LENGTH.pack(len(frame)) + frame)

    def _flush(self) -> None:
        while self._outgoing and not self._blocked and not self._ended:
            assert self._transport is not None
            self._transport.write(self._outgoing.popleft())

    def _resume(self) -> None:
        self._paused = False
        self._take_frames()
        if not self._paused and not self._ended and self._transport is not None:
            self._transport.resume_reading()

    def _take_frames(self) -> None:
        try:
            while not self._paused and not self._ended and (frame := self._next_frame()):
                self.heard_bytes = len(frame)
                self._deliver(self, self._decoder.decode(frame))
        except ValueError:  # of msgspec too, and text that is not UTF-8: no worker of ours
            self.abort()
        if self._paused and self._transport is not None:
            self._transport.pause_reading()

    def _next_frame(self) -> bytes | None:
        """The next frame, None if it has not arrived yet. Raises ValueError if its length is out of
        bounds."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if not 0 < length <= self._longest:
            raise ValueError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[_LENGTH.size : end])
        del self._received[:end]
        return frame


def _tune(connected: socket.socket) -> None:
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_with_peer(connected)

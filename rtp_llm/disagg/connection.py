"""A connection that carries messages both ways and never lets the engine's thread wait."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection as PipeConnection
from typing import Any, Generic, TypeVar

import msgspec

from rtp_llm.config.roles import join_address
from rtp_llm.disagg.messages import LONGEST_HELLO, LONGEST_MESSAGE
from rtp_llm.keepalive import end_with_peer

In = TypeVar("In")

# A peer that lets so many messages lie reads none, however alive its end of the wire is.
_MOST_UNSENT = 65_536


class Waker:
    """An eventfd that wakes a thread which polls descriptors."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Make the descriptor readable; any thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable again: to be called before one looks at what there is."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)


class MessageConnection(Generic[In]):
    """Messages over a connected socket, sent and received by two threads of its own.

    ``deliver(connection, message)`` is called from the receiving thread, which reads nothing
    while it lasts; with None as the last message when the other side is gone. A peer that reads
    nothing is cut off, and so is one that sends more than a greeting before ``trust``.
    """

    def __init__(
        self,
        connected: socket.socket,
        incoming: Any,
        deliver: Callable[[MessageConnection[In], In | None], None],
        greeting: msgspec.Struct | None = None,
        longest_greeting: int = LONGEST_HELLO,
        heard: In | None = None,
    ) -> None:
        """``incoming``: the type, or union of types, of what is received. ``greeting`` goes out
        first: other threads may send as soon as ``deliver`` has heard of the connection.
        ``longest_greeting``: bytes of the other side's. ``heard``: what was read of it before, to
        be delivered first."""
        self.peer = join_address(*connected.getpeername()[:2])
        _tune(connected)
        self._socket = connected
        self._connection: PipeConnection[bytes, bytes] = PipeConnection(os.dup(connected.fileno()))
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._deliver = deliver
        self._longest = longest_greeting
        self._dismissed = False
        self._heard = heard
        self.heard_bytes = 0  # of the message that ``deliver`` was called with last
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        if greeting is not None:
            self.send(greeting)
        try:
            for work in (self._receive, self._send):
                threading.Thread(target=work, name=f"connection {self.peer}", daemon=True).start()
        except RuntimeError:
            self.close()  # what receives without a thread that sends ends
            raise

    def trust(self) -> None:
        """Take messages of any length from now on: its handshake is complete."""
        self._longest = LONGEST_MESSAGE

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; what the other side never gets is told by the end of the connection."""
        if self._outgoing.qsize() >= _MOST_UNSENT:
            self.close()
            return
        self._outgoing.put(self._encoder.encode(message))

    def dismiss(self) -> None:
        """From ``deliver``: hear no more, and end it when all was sent that was said so far."""
        self._dismissed = True

    def close(self) -> None:
        """End it, both ways; the other side and ``deliver`` hear of it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        try:
            if self._heard is not None:
                self._deliver(self, self._heard)
            while not self._dismissed:
                frame = self._connection.recv_bytes(self._longest)
                self.heard_bytes = len(frame)
                self._deliver(self, self._decoder.decode(frame))
        except (EOFError, OSError, ValueError):  # of msgspec too, and text that is not UTF-8
            pass  # gone, or no worker of ours: either way nothing more comes
        finally:
            if not self._dismissed:
                self.close()
            self._outgoing.put(None)
            self._deliver(self, None)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := self._outgoing.get()) is not None:
                self._connection.send_bytes(frame)
        self.close()


def _tune(connected: socket.socket) -> None:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_with_peer(connected)

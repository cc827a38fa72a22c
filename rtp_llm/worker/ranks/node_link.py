# SPDX-License-Identifier: Apache-2.0
"""A TCP connection between two nodes that have proven to each other that they know a key.

A peer is not trusted before that, and nothing is ever unpickled: a frame is a length and that many
bytes, which frames.py decodes. Frames are neither encrypted nor signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import socket
import threading
from typing import Literal

MAX_BYTES = 1 << 30  # per frame: more than any plan has
_LENGTH_BYTES = 8
_NONCE_BYTES = _PROOF_BYTES = 32
_HANDSHAKE_SECONDS = 5.0
# The kernel notices that a machine is gone, with a probe after a second without traffic. That needs
# no thread of this process, which may be held up for seconds while it loads.
_PROBE_SECONDS = 1
_GONE_MILLISECONDS = 2000

Side = Literal["first", "other"]


class LinkError(RuntimeError):
    """The connection cannot be used (any more); the message says why."""


class WrongKeyError(LinkError):
    """The peer does not know the key."""


class Link:
    """Sends and receives frames; any thread may send, one receives."""

    def __init__(self, connection: socket.socket, key: bytes, side: Side) -> None:
        """Prove to the peer on the other side that this side has the ``key``.

        Raises LinkError, and closes the connection, if the peer does not do the same; WrongKeyError
        if it has another key.
        """
        self._socket, self._lock = connection, threading.Lock()
        self.peer = str(connection.getpeername()[0])
        self.own_address = str(connection.getsockname()[0])
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._prove(key, side)
            self._watch()
        except BaseException:
            connection.close()
            raise

    def _prove(self, key: bytes, side: Side) -> None:
        mine = os.urandom(_NONCE_BYTES)
        try:
            self._socket.sendall(mine)
            theirs = bytes(self._read(_NONCE_BYTES))
            nonces = mine + theirs if side == "first" else theirs + mine
            peer: Side = "other" if side == "first" else "first"
            self._socket.sendall(_proof(key, side, nonces))
            said = self._read(_PROOF_BYTES)
        except OSError as error:
            raise LinkError(f"{self.peer} does not speak as a node does ({error})") from error
        if not hmac.compare_digest(bytes(said), _proof(key, peer, nonces)):
            raise WrongKeyError(f"{self.peer} has another key (worker_key_file)")

    def _watch(self) -> None:
        options = (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MILLISECONDS),
        )
        for option in options:
            self._socket.setsockopt(*option)
        self._socket.settimeout(None)

    def send(self, frame: bytes) -> None:
        """Send a frame. Raises LinkError if the peer is gone."""
        try:
            with self._lock:
                self._socket.sendall(len(frame).to_bytes(_LENGTH_BYTES, "little"))
                self._socket.sendall(frame)
        except OSError as error:
            raise LinkError(f"{self.peer} is gone ({error})") from error

    def readable(self, seconds: float) -> bool:
        """Whether a frame or the end of the connection arrives in that time; other threads may send
        in the meantime."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(int(seconds * 1000)))
        except ValueError:  # closed on this side, as `receive` says
            return True

    def receive(self, seconds: float | None = None) -> bytearray:
        """Wait for the next frame, but no longer than that.

        Raises LinkError if none arrives, because the peer is gone or violates the protocol.
        """
        try:
            self._socket.settimeout(seconds)
            length = int.from_bytes(self._read(_LENGTH_BYTES), "little")
            if length > MAX_BYTES:
                raise LinkError(f"{self.peer} sends {length} bytes at once, {MAX_BYTES} at most")
            frame = self._read(length)
            self._socket.settimeout(None)
            return frame
        except OSError as error:
            raise LinkError(f"{self.peer} is gone ({error})") from error

    def _read(self, count: int) -> bytearray:
        read = bytearray(count)
        rest = memoryview(read)
        while rest:
            got = self._socket.recv_into(rest)
            if got == 0:
                raise ConnectionResetError("the connection has ended")
            rest = rest[got:]
        return read

    @property
    def alive(self) -> bool:
        """Whether the peer has kept the connection open; for times when it has nothing to send."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def finish(self) -> None:
        """Send nothing more; what was sent still arrives."""
        with contextlib.suppress(OSError):  # the peer is gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; threads that wait for a frame, on both sides, notice it."""
        with contextlib.suppress(OSError):  # the peer was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _proof(key: bytes, side: Side, nonces: bytes) -> bytes:
    return hmac.new(key, b"rtp-llm node, " + side.encode() + nonces, hashlib.sha256).digest()

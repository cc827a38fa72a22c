# SPDX-License-Identifier: Apache-2.0
"""One TCP connection between two nodes, whose ends have proven to each other that they know a key.

Nothing is believed of a peer before that, and nothing is ever unpickled: a frame is a length and as
many bytes, which frames.py knows how to read. What travels is neither encrypted nor signed.
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

MOST_BYTES = 1 << 30  # of a frame: more than any plan has
_LENGTH_BYTES = 8
_NONCE_BYTES = _PROOF_BYTES = 32
_HANDSHAKE_SECONDS = 5.0
# A machine that is gone is noticed by the kernel, which asks after a second without traffic: that
# needs no thread of a process, which may be held up for seconds while it loads.
_PROBE_SECONDS = 1
_GONE_MILLISECONDS = 2000

Side = Literal["first", "other"]


class LinkError(RuntimeError):
    """The connection cannot be used, or not any more; the message says why."""


class WrongKeyError(LinkError):
    """The peer does not know the key."""


class Link:
    """Sends and receives frames; any thread may send, one receives."""

    def __init__(self, connection: socket.socket, key: bytes, side: Side) -> None:
        """Prove to the peer, whose side is the other one, that this one has the ``key``.

        Raises LinkError, and closes the connection, when the peer does not do the same:
        WrongKeyError when it has another key.
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
        """Raises LinkError when the peer is gone."""
        try:
            with self._lock:
                self._socket.sendall(len(frame).to_bytes(_LENGTH_BYTES, "little"))
                self._socket.sendall(frame)
        except OSError as error:
            raise LinkError(f"{self.peer} is gone ({error})") from error

    def readable(self, seconds: float) -> bool:
        """Whether something comes within that time, or the end. Others may send meanwhile."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(int(seconds * 1000)))
        except ValueError:  # closed on this side, as `receive` says
            return True

    def receive(self, seconds: float | None = None) -> bytearray:
        """The next frame, waited for that long.

        Raises LinkError when none comes, because the peer is gone or breaks the rules.
        """
        try:
            self._socket.settimeout(seconds)
            length = int.from_bytes(self._read(_LENGTH_BYTES), "little")
            if length > MOST_BYTES:
                raise LinkError(f"{self.peer} sends {length} bytes at once, {MOST_BYTES} at most")
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
        """The peer has not ended the connection; asked while it is not to say anything."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def finish(self) -> None:
        """Nothing more will be sent; what was sent arrives."""
        with contextlib.suppress(OSError):  # the peer is gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Who waits for a frame hears of it, here and there."""
        with contextlib.suppress(OSError):  # the peer was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _proof(key: bytes, side: Side, nonces: bytes) -> bytes:
    return hmac.new(key, b"rtp-llm node, " + side.encode() + nonces, hashlib.sha256).digest()

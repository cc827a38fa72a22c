# SPDX-License-Identifier: Apache-2.0
"""A connection during its handshake, without a thread of its own."""

from __future__ import annotations

import socket
import struct
import time

import msgspec

from rtp_llm.config.roles import join_address
from rtp_llm.disagg.wire.messages import (
    LONGEST_HELLO,
    Challenge,
    Hello,
    Proof,
    Response,
    ToPrefill,
    Welcome,
)
from rtp_llm.disagg.wire.worker_key import WorkerKey, fresh_nonce

_LENGTH = struct.Struct("!i")
_HELLO: msgspec.msgpack.Decoder[ToPrefill] = msgspec.msgpack.Decoder(ToPrefill)
_RESPONSE: msgspec.msgpack.Decoder[Response | ToPrefill] = msgspec.msgpack.Decoder(
    Response | ToPrefill
)


class HandshakeError(Exception):
    """The peer is not a decode worker of this cluster; the message has the reason, or is empty."""


class PendingConnection:
    """A non-blocking connection up to its Hello; owned by one thread, which never waits for it."""

    def __init__(self, connected: socket.socket, welcome: Welcome, key: WorkerKey | None) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.came = time.monotonic()
        self.peer = join_address(*connected.getpeername()[:2])
        self._welcome, self._key = welcome, key
        self._nonce = fresh_nonce()
        self._proven = key is None
        self._taken = bytearray()
        self._unsent = bytearray()
        self._say(welcome if key is None else Challenge(nonce=self._nonce))

    @property
    def has_unsent(self) -> bool:
        """Whether output is pending; nothing is read before the peer has taken it."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what the peer accepts now. Raises OSError if it is gone."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass

    def read(self) -> ToPrefill | None:
        """The peer's first message once it has proven its key, None before that.

        Raises:
            HandshakeError: the peer has no key, or another one.
            EOFError, OSError, ValueError: the peer is gone, or violates the protocol.
        """
        frame = self._next_frame()
        if frame is None:
            return None
        if self._proven:
            return _HELLO.decode(frame)
        self._hear_response(_RESPONSE.decode(frame))
        return None

    def _hear_response(self, said: Response | ToPrefill) -> None:
        assert self._key is not None
        if isinstance(said, Hello):
            raise HandshakeError("has no worker key and this worker has one (--worker-key-file)")
        if not isinstance(said, Response) or not self._key.accepts(said, self._nonce):
            raise HandshakeError("has another worker key (--worker-key-file)")
        self._proven = True
        self._say(Proof(mac=self._key.proof("prefill", self._nonce, said.nonce)))
        self._say(self._welcome)

    def _say(self, message: msgspec.Struct) -> None:
        frame = msgspec.msgpack.encode(message)
        self._unsent += _LENGTH.pack(len(frame)) + frame

    def _next_frame(self) -> bytes | None:
        """Read the next frame, and no byte beyond it."""
        while (missing := self._missing()) > 0:
            try:
                part = self.socket.recv(missing)
            except BlockingIOError:
                return None
            if not part:
                raise EOFError
            self._taken += part
        frame = bytes(self._taken[_LENGTH.size :])
        self._taken.clear()
        return frame

    def _missing(self) -> int:
        if len(self._taken) < _LENGTH.size:
            return _LENGTH.size - len(self._taken)
        (length,) = _LENGTH.unpack_from(self._taken)
        if not 0 <= length <= LONGEST_HELLO:
            raise ValueError("the handshake is too long")
        return int(_LENGTH.size + length - len(self._taken))

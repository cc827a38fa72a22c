# SPDX-License-Identifier: Apache-2.0
"""Both sides of a prefill port prove that they have the same key, without sending it."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from typing import Literal

import msgspec

from rtp_llm.disagg.wire.messages import (
    LONGEST_WELCOME,
    NONCE_BYTES,
    Challenge,
    Proof,
    Response,
    ToDecode,
    Welcome,
)

_LENGTH = struct.Struct("!i")
_TO_DECODE: msgspec.msgpack.Decoder[ToDecode] = msgspec.msgpack.Decoder(ToDecode)


class KeyMismatchError(RuntimeError):
    """The other side has another key, or one of the two has none."""


class WorkerKey:
    """The secret that the workers of one deployment share."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def proof(
        self, side: Literal["prefill", "decode"], prefill_nonce: bytes, decode_nonce: bytes
    ) -> bytes:
        """What shows, in this connection and of this side only, that it has the key."""
        words = b"rtp-llm prefill port 1 " + side.encode() + b"\0" + prefill_nonce + decode_nonce
        return hmac.digest(self.secret, words, "sha256")

    def accepts(self, response: Response, nonce: bytes) -> bool:
        """Whether a decode worker that was challenged with this nonce has the key."""
        expected = self.proof("decode", nonce, response.nonce)
        fresh = len(response.nonce) == NONCE_BYTES
        return hmac.compare_digest(response.mac, expected) and fresh


def fresh_nonce() -> bytes:
    """For one challenge."""
    return os.urandom(NONCE_BYTES)


def prove_to_prefill_worker(connected: socket.socket, key: WorkerKey, seconds: float) -> None:
    """Answer the challenge of a prefill worker, and see that it has the key, too.

    Raises:
        KeyMismatchError: it has not, or refuses ours.
        OSError, ValueError: the connection broke, or what came is no handshake.
    """
    deadline = time.monotonic() + seconds
    challenge = _receive(connected, deadline)
    if isinstance(challenge, Welcome):
        raise KeyMismatchError("it has no worker key and this worker has one (--worker-key-file)")
    if not isinstance(challenge, Challenge) or len(challenge.nonce) != NONCE_BYTES:
        raise ValueError("it sent no valid prefill-worker handshake")
    nonce = fresh_nonce()
    mac = key.proof("decode", challenge.nonce, nonce)
    frame = msgspec.msgpack.encode(Response(nonce=nonce, mac=mac))
    connected.sendall(_LENGTH.pack(len(frame)) + frame)
    try:
        proof = _receive(connected, deadline)
    except (EOFError, ConnectionResetError) as error:
        text = "it does not take the key of this worker (--worker-key-file on both sides)"
        raise KeyMismatchError(text) from error
    expected = key.proof("prefill", challenge.nonce, nonce)
    if not isinstance(proof, Proof) or not hmac.compare_digest(proof.mac, expected):
        raise KeyMismatchError("it does not prove that it has our key (--worker-key-file)")


def _receive(connected: socket.socket, deadline: float) -> ToDecode:
    (length,) = _LENGTH.unpack(_exactly(connected, _LENGTH.size, deadline))
    if not 0 <= length <= LONGEST_WELCOME:
        raise ValueError("it sent no valid prefill-worker handshake")
    return _TO_DECODE.decode(_exactly(connected, length, deadline))


def _exactly(connected: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes, and none of what follows."""
    taken = bytearray()
    while len(taken) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it sent no valid prefill-worker handshake")
        connected.settimeout(left)
        part = connected.recv(size - len(taken))
        if not part:
            raise EOFError("the connection ended")
        taken += part
    return bytes(taken)

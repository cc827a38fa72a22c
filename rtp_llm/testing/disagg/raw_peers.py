# SPDX-License-Identifier: Apache-2.0
"""Plain sockets that talk to a prefill worker's listener."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rtp_llm.config.roles import split_address
from rtp_llm.disagg.prefill.listener import Listener
from rtp_llm.disagg.wire.messages import PROTOCOL, Hello, Offer, Prefill, Welcome
from rtp_llm.request.sampling_params import SamplingParams

OFFERS = [Offer(transport="tcp", address=b"1")]
WELCOME = Welcome(protocol=PROTOCOL, fingerprint="Model tp=1", offers=OFFERS)
HELLO = Hello(protocol=PROTOCOL, fingerprint="Model tp=1")


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.005)


class RawPeer:
    """A plain socket connected to the listener."""

    def __init__(self, listener: Listener) -> None:
        self.socket = socket.create_connection(split_address("", listener.address))
        self.socket.settimeout(20)

    def send(self, body: bytes) -> None:
        self.socket.sendall(struct.pack("!i", len(body)) + body)

    def say(self, message: msgspec.Struct) -> None:
        self.send(msgspec.msgpack.encode(message))

    def read_to_the_end(self) -> bytes:
        """All that it was sent until it was disconnected."""
        heard = b""
        try:
            while part := self.socket.recv(65536):
                heard += part
        except ConnectionResetError:
            pass
        return heard


def prefill_of(length: int, name: int = 1) -> Prefill:
    return Prefill(
        name=name,
        prompt_token_ids=[7] * length,
        params=SamplingParams(),
        extra_key="k",
        timeout=1.0,
        transport="tcp",
    )

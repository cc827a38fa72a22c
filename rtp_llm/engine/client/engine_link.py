# SPDX-License-Identifier: Apache-2.0
"""The client's end of the engine process: the process, two sockets, message coding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import zmq

from rtp_llm.engine.address import EngineAddress
from rtp_llm.engine.client.launch import EngineProcess
from rtp_llm.engine.messages import FromEngine, ToEngine

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership

_RECONNECT_MILLISECONDS = 10


class EngineLink:
    """A spawned engine process and what is needed to talk to it; knows nothing of requests."""

    def __init__(
        self,
        module: str,
        settings: Settings | None,
        membership: Membership | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """The arguments are those of EngineProcess.spawn."""
        self._address = EngineAddress.create()
        self._context = zmq.Context()
        # The sending side connects: then it can queue before the other side is there.
        self._outbox = self._socket(zmq.PUSH)
        self._outbox.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
        if settings is not None:
            self._outbox.connect(self._address.to_engine)
        self._inbox = self._socket(zmq.PULL)
        self._inbox.bind(self._address.from_engine)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        try:
            self.process = EngineProcess.spawn(module, self._address, settings, membership, environ)
        except BaseException:
            self.discard()
            raise

    def begin(self, settings: Settings) -> None:
        """Have a process that was spawned without settings load the model.

        Only now does it matter whether it listens: connecting is repeated until it does.
        """
        self._outbox.connect(self._address.to_engine)
        self.process.begin(settings)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        # Requests are bounded by admission and outputs by the requests: no pipe may block or drop.
        socket.set_hwm(0)
        socket.linger = 0
        return socket

    @property
    def inbox(self) -> zmq.Socket[bytes]:
        """To wait for the messages of several engines at once; `receive` takes them."""
        return self._inbox

    @property
    def descriptor(self) -> int:
        """Becomes readable when messages arrive; it signals edges, so drain ``receive`` then."""
        return int(self._inbox.getsockopt(zmq.FD))

    def send(self, message: ToEngine) -> None:
        """Queue a message for sending."""
        self._outbox.send(self._encoder.encode(message))

    def receive(self) -> Iterator[FromEngine]:
        """All messages that are there."""
        while not self._inbox.closed:
            try:
                frame = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._decoder.decode(frame)

    def discard(self) -> None:
        """Close the sockets and remove their folder."""
        self._context.destroy(linger=0)
        self._address.remove()

    def end(self, timeout: float = 0.0) -> None:
        """Kill the process after up to ``timeout`` seconds, and `discard`; needs no event loop."""
        self.process.wait(timeout)
        self.discard()

    def kill_soon(self, seconds: float = 1.0) -> None:
        """Make sure that a dead engine does not linger; one that is ending gets a moment."""
        if self.process.running:
            asyncio.get_running_loop().call_later(seconds, self.process.kill)

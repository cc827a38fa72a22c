# SPDX-License-Identifier: Apache-2.0
"""What leaves the engine process: one socket, shared by its threads under a lock."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec
import zmq

from rtp_llm.engine.messages import EngineLog

if TYPE_CHECKING:
    from rtp_llm.engine.address import EngineAddress
    from rtp_llm.engine.messages import FromEngine

# How long the last words may take to reach the client when the process ends.
_LINGER_MILLISECONDS = 2000


class Sender:
    """Sends messages to the client. What waits is bounded by the tokens of admitted requests."""

    def __init__(self, address: EngineAddress) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.linger = _LINGER_MILLISECONDS
        self._socket.connect(address.from_engine)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Queue a message for sending; any thread."""
        with self._lock:
            if not self._socket.closed:
                self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        """Send what is queued, then close."""
        with self._lock:
            self._socket.close()
        self._context.term()


class LogForwarder(logging.Handler):
    """Sends log records to the client, which writes them where its own go."""

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        """Send the formatted record."""
        message = self.format(record)
        self._sender.send(EngineLog(level=record.levelno, message=message, logger=record.name))

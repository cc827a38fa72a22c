# SPDX-License-Identifier: Apache-2.0
"""A prefill worker's listening socket, and the connections of decode workers that it accepted."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.disagg.wire.bounded_queue import BoundedQueue
from rtp_llm.disagg.wire.connection import MessageConnection
from rtp_llm.disagg.wire.differences import explain
from rtp_llm.disagg.wire.handshake import HandshakeError, PendingConnection
from rtp_llm.disagg.wire.message_loop import MessageLoop
from rtp_llm.disagg.wire.messages import LONGEST_MESSAGE, Hello, Ping, Pong, ToPrefill, Welcome
from rtp_llm.disagg.wire.rate_limited_log import RateLimitedLog
from rtp_llm.disagg.wire.worker_key import WorkerKey
from rtp_llm.engine.waker import Waker

DecodeWorker = MessageConnection[ToPrefill]
_logger = logging.getLogger("rtp_llm.engine")
# Until the system may have descriptors again.
_PAUSE_SECONDS = 0.1
# More decode workers than anybody has.
MAX_CONNECTIONS = 256
_LOOK_SECONDS = 0.5  # how often handshakes are checked for their deadline
# Deadline of a handshake.
HANDSHAKE_SECONDS = 10.0
# When all places are taken, a handshake that has lasted so long is dropped for a new one.
FAIR_SECONDS = 1.0


class Listener:
    """Accepts connections and does their handshakes on one thread, serves the admitted on another.

    Messages wait for ``take``.

    Nothing is accepted before ``open``, and at most MAX_CONNECTIONS at a time. Handshakes go on
    whatever the engine computes: a peer that fails one, or takes longer than HANDSHAKE_SECONDS, is
    disconnected, and none of its messages is queued; with a key, a peer that does not prove it
    learns nothing. A peer with too many messages in the queue is not read on. Pings are answered
    here as well.
    """

    def __init__(self, address: str, waker: Waker, key: WorkerKey | None = None) -> None:
        """Listen on host:port (port 0: a free one); ``waker`` is woken by messages.

        Raises OSError when the address cannot be had.
        """
        self._messages: BoundedQueue[tuple[DecodeWorker, ToPrefill | None]] = BoundedQueue(
            waker.wake
        )
        host, port = split_address("prefill_address", address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=1024)
        self._socket.setblocking(False)
        self._key = key
        self._closed = threading.Event()
        self._waker = Waker()
        self._lock = threading.Lock()
        self._admitted: set[DecodeWorker] = set()  # whose handshake is complete
        # Handshakes under way, the oldest first; the listener's thread only.
        self._pending: dict[PendingConnection, None] = {}
        self._selector = selectors.DefaultSelector()
        self._loop = MessageLoop("decode workers")  # of whom the handshake is complete
        self._thread: threading.Thread | None = None
        self._full = False
        self._log = RateLimitedLog()
        name = self._socket.getsockname()
        self.host: str = name[0]
        self.address = join_address(*name[:2])

    def open(self, welcome: Welcome) -> None:
        """Accept decode workers with this handshake; theirs must have the same block layout."""
        work = threading.Thread(target=self._run, args=(welcome,), name="listener", daemon=True)
        self._thread = work
        work.start()

    def take(self) -> list[tuple[DecodeWorker, ToPrefill | None]]:
        """Messages since the last call, in order; a worker's first is Hello, its last None."""
        return self._messages.take()

    def close(self) -> None:
        """Close all connections and join the thread."""
        self._closed.set()
        self._waker.wake()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many are open, handshakes under way included."""
        return len(self._admitted) + len(self._pending)

    # -- the listener's thread -----------------------------------------------------------------

    def _run(self, welcome: Welcome) -> None:
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._waker.descriptor, selectors.EVENT_READ)
        while not self._closed.is_set():
            for ready, _ in self._selector.select(_LOOK_SECONDS):
                if ready.fileobj is self._socket:
                    self._accept(welcome)
                elif ready.data in self._pending:  # not disconnected in this very turn
                    self._serve(welcome, ready.data)
            self._expire_handshakes()
            self._log.tick()
        for pending in list(self._pending):
            self._disconnect(pending)
        self._selector.close()

    def _accept(self, welcome: Welcome) -> None:
        try:
            connected = self._socket.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # no descriptors, or gone again already
            self._closed.wait(_PAUSE_SECONDS)
            return
        if self._is_full():
            connected.close()
            return
        try:
            pending = PendingConnection(connected, welcome, self._key)
            self._selector.register(connected, selectors.EVENT_WRITE, pending)
        except OSError:  # gone already
            connected.close()
            return
        self._pending[pending] = None
        self._serve(welcome, pending)

    def _is_full(self) -> bool:
        was, self._full = self._full, self.connections >= MAX_CONNECTIONS
        if self._full and not was:
            _logger.warning(
                "%d decode workers are connected, others are not let in", MAX_CONNECTIONS
            )
        first = next(iter(self._pending), None)
        if self._full and first and time.monotonic() >= first.came + FAIR_SECONDS:
            self._disconnect(first)
            return False
        return self._full

    def _serve(self, welcome: Welcome, pending: PendingConnection) -> None:
        """Go on with a handshake: send what is unsent, read what has come."""
        try:
            pending.flush()
            message = None if pending.has_unsent else pending.read()
            pending.flush()
            if message is not None:
                self._judge(welcome, pending, message)
                return
            waits_for = selectors.EVENT_WRITE if pending.has_unsent else selectors.EVENT_READ
            self._selector.modify(pending.socket, waits_for, pending)
        except HandshakeError as error:
            self._log.warn("%s %s", pending.peer, error)
            self._disconnect(pending)
        except (EOFError, OSError, ValueError):  # of msgspec too, and text that is not UTF-8
            self._disconnect(pending)  # gone, or no worker of ours
        except Exception:  # a defect of ours, that shall not keep all others out
            _logger.exception("the handshake of %s failed", pending.peer)
            if pending in self._pending:
                self._disconnect(pending)

    def _judge(self, welcome: Welcome, pending: PendingConnection, message: ToPrefill) -> None:
        """Check a peer's Hello: admit it, or disconnect it with the reason in the log."""
        here = (welcome.protocol, welcome.fingerprint)
        if not isinstance(message, Hello):
            self._log.warn("%s asks for blocks before its handshake", pending.peer)
        elif (there := (message.protocol, message.fingerprint)) != here:
            differing = "; ".join(explain(there, here))  # it reads so in our handshake, too
            self._log.warn("decode worker %s has other blocks: %s", pending.peer, differing)
        else:
            self._admit(pending, message)
            return
        self._disconnect(pending)

    def _admit(self, pending: PendingConnection, hello: Hello) -> None:
        self._selector.unregister(pending.socket)
        # Under the lock its end cannot be noticed before it was added.
        with self._lock, contextlib.suppress(OSError, RuntimeError):  # gone, or the loop is
            decode_worker: DecodeWorker = MessageConnection(
                self._loop,
                pending.socket,
                ToPrefill,
                self._deliver,
                longest_handshake=LONGEST_MESSAGE,
                heard=hello,
            )
            self._admitted.add(decode_worker)
        del self._pending[pending]

    def _expire_handshakes(self) -> None:
        latest = time.monotonic() - HANDSHAKE_SECONDS
        for pending in [each for each in self._pending if each.came <= latest]:
            self._log.warn("%s sent no valid handshake and is disconnected", pending.peer)
            self._disconnect(pending)

    def _disconnect(self, pending: PendingConnection) -> None:
        del self._pending[pending]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pending.socket)
        with contextlib.suppress(OSError):  # what it was told goes out before the end
            pending.socket.shutdown(socket.SHUT_RDWR)
        pending.socket.close()

    # -- the loop's thread ---------------------------------------------------------------------

    def _deliver(self, decode_worker: DecodeWorker, message: ToPrefill | None) -> None:
        with self._lock:
            if message is None:
                self._admitted.discard(decode_worker)
        if isinstance(message, Ping):  # whatever the engine computes
            decode_worker.send(Pong())
            return
        sender = None if message is None else decode_worker
        self._messages.put((decode_worker, message), sender, decode_worker.heard_bytes)

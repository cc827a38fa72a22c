"""Where decode workers come to a prefill worker: a listening socket and the channels it gave."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
import time

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.disagg.channel import Bell, Channel
from rtp_llm.disagg.differences import explain
from rtp_llm.disagg.mailbox import Mailbox
from rtp_llm.disagg.messages import Hello, Ping, Pong, ToPrefill, Welcome

Visitor = Channel[ToPrefill]
_logger = logging.getLogger("rtp_llm.engine")
# Until the system may have descriptors again.
_PAUSE_SECONDS = 0.1
# More decode workers than anybody has; each is two threads here.
MOST_VISITORS = 256
_LOOK_SECONDS = 0.5  # for those that stayed too long
# How long one may stay that has not greeted us rightly.
GREETING_SECONDS = 30.0


class Door:
    """Accepts connections on a thread of its own and greets them; what they say waits for ``take``.

    Nobody is let in before ``open``, and no more than MOST_VISITORS at a time. Greetings are judged
    as they come, whatever the engine computes: who greets wrongly, or not within GREETING_SECONDS,
    is sent away, and nothing that it said waits. Who says more than may wait is not read on. Who
    asks whether we are there is answered as well.
    """

    def __init__(self, address: str, bell: Bell) -> None:
        """Listen on host:port (port 0: a free one); the bell rings when there is something.

        Raises OSError when the address cannot be had.
        """
        self._messages: Mailbox[tuple[Visitor, ToPrefill | None]] = Mailbox(bell.ring)
        host, port = split_address("prefill_address", address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.settimeout(_LOOK_SECONDS)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._visitors: set[Visitor] = set()
        self._guests: set[Visitor] = set()  # that greeted rightly
        self._strangers: dict[Visitor, float] = {}  # until when each may stay, the first one first
        self._full = False
        name = self._listener.getsockname()
        self.host: str = name[0]
        self.address = join_address(*name[:2])

    def open(self, welcome: Welcome) -> None:
        """Let visitors in, with this greeting; theirs must have the same blocks."""
        work = threading.Thread(target=self._accept, args=(welcome,), name="door", daemon=True)
        work.start()

    def take(self) -> list[tuple[Visitor, ToPrefill | None]]:
        """What guests said since the last call, in order; the first is Hello, the last None."""
        return self._messages.take()

    def close(self) -> None:
        """Send everybody away."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._messages.close()
        with self._lock:
            visitors = list(self._visitors)
        for visitor in visitors:
            visitor.close()

    def _accept(self, welcome: Welcome) -> None:
        while not self._closed.is_set():
            try:
                self._let_in(self._listener.accept()[0], welcome)
            except TimeoutError:
                pass
            except (OSError, RuntimeError):  # no descriptors or threads, or gone again already
                self._closed.wait(_PAUSE_SECONDS)
            self._send_strangers_away()

    def _let_in(self, connected: socket.socket, welcome: Welcome) -> None:
        # Under the lock its end cannot be noticed before it was added.
        with self._lock:
            if self._is_full():
                connected.close()
                return
            deliver = functools.partial(self._deliver, welcome)
            visitor: Visitor = Channel(connected, ToPrefill, deliver, welcome)
            self._visitors.add(visitor)
            self._strangers[visitor] = time.monotonic() + GREETING_SECONDS

    def _is_full(self) -> bool:
        was, self._full = self._full, len(self._visitors) >= MOST_VISITORS
        if self._full and not was:
            _logger.warning("%d decode workers are connected, others are not let in", MOST_VISITORS)
        return self._full

    def _send_strangers_away(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [visitor for visitor, until in self._strangers.items() if until <= now]
        for visitor in late:
            _logger.warning("%s did not greet us rightly and is sent away", visitor.peer)
            visitor.close()

    def _deliver(self, welcome: Welcome, visitor: Visitor, message: ToPrefill | None) -> None:
        with self._lock:
            known = visitor in self._guests
            if message is None:
                self._visitors.discard(visitor)
                self._guests.discard(visitor)
                self._strangers.pop(visitor, None)
        if known and isinstance(message, Ping):  # whatever the engine computes
            visitor.send(Pong())
        elif known or (message is not None and self._admit(welcome, visitor, message)):
            sender = None if message is None else visitor
            self._messages.leave((visitor, message), sender, visitor.heard_bytes)

    def _admit(self, welcome: Welcome, visitor: Visitor, message: ToPrefill) -> bool:
        """Whether a stranger greets rightly, so that it may stay; else it is sent away."""
        there: tuple[int, str] | None = None
        if isinstance(message, Hello):
            there = (message.protocol, message.fingerprint)
        here = (welcome.protocol, welcome.fingerprint)
        if there == here:
            with self._lock:
                self._strangers.pop(visitor, None)
                self._guests.add(visitor)
            visitor.trust()
            return True
        if there is None:
            _logger.warning("%s asks for blocks and did not greet us rightly", visitor.peer)
        else:  # it reads so in our greeting, too
            differing = "; ".join(explain(there, here))
            _logger.warning("decode worker %s has other blocks: %s", visitor.peer, differing)
        visitor.dismiss()
        return False

"""Where decode workers come to a prefill worker: a listening socket and the channels it gave."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.disagg.channel import Bell, Channel
from rtp_llm.disagg.complaints import Complaints
from rtp_llm.disagg.differences import explain
from rtp_llm.disagg.mailbox import Mailbox
from rtp_llm.disagg.messages import LONGEST_MESSAGE, Hello, Ping, Pong, ToPrefill, Welcome
from rtp_llm.disagg.strangers import Stranger, UninvitedError
from rtp_llm.disagg.worker_key import WorkerKey

Visitor = Channel[ToPrefill]
_logger = logging.getLogger("rtp_llm.engine")
# Until the system may have descriptors again.
_PAUSE_SECONDS = 0.1
# More decode workers than anybody has; each is two threads here once it has greeted rightly.
MOST_VISITORS = 256
_LOOK_SECONDS = 0.5  # for those that stayed too long
# How long one may stay that has not greeted us rightly.
GREETING_SECONDS = 10.0
# When all places are taken, one that was here for so long without greeting makes room.
FAIR_SECONDS = 1.0


class Door:
    """Accepts connections and greets them on one thread; what workers say waits for ``take``.

    Nobody is let in before ``open``, and no more than MOST_VISITORS at a time. Greetings are judged
    as they come, whatever the engine computes: who greets wrongly, or not within GREETING_SECONDS,
    is sent away, and nothing that it said waits; with a key, who does not prove it is told nothing.
    Who says more than may wait is not read on. Who asks whether we are there is answered as well.
    """

    def __init__(self, address: str, bell: Bell, key: WorkerKey | None = None) -> None:
        """Listen on host:port (port 0: a free one); the bell rings when there is something.

        Raises OSError when the address cannot be had.
        """
        self._messages: Mailbox[tuple[Visitor, ToPrefill | None]] = Mailbox(bell.ring)
        host, port = split_address("prefill_address", address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        self._key = key
        self._closed = threading.Event()
        self._waking = Bell()
        self._lock = threading.Lock()
        self._guests: set[Visitor] = set()  # that greeted rightly
        # Of the door's thread alone, the first one first.
        self._strangers: dict[Stranger, None] = {}
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._full = False
        self._complaints = Complaints()
        name = self._listener.getsockname()
        self.host: str = name[0]
        self.address = join_address(*name[:2])

    def open(self, welcome: Welcome) -> None:
        """Let visitors in, with this greeting; theirs must have the same blocks."""
        work = threading.Thread(target=self._run, args=(welcome,), name="door", daemon=True)
        self._thread = work
        work.start()

    def take(self) -> list[tuple[Visitor, ToPrefill | None]]:
        """What guests said since the last call, in order; the first is Hello, the last None."""
        return self._messages.take()

    def close(self) -> None:
        """Send everybody away."""
        self._closed.set()
        self._waking.ring()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        self._messages.close()
        with self._lock:
            visitors = list(self._guests)
        for visitor in visitors:
            visitor.close()

    @property
    def visitors(self) -> int:
        """How many are here, whether they have greeted or not."""
        return len(self._guests) + len(self._strangers)

    # -- the door's thread ---------------------------------------------------------------------

    def _run(self, welcome: Welcome) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._waking.descriptor, selectors.EVENT_READ)
        while not self._closed.is_set():
            for ready, _ in self._selector.select(_LOOK_SECONDS):
                if ready.fileobj is self._listener:
                    self._accept(welcome)
                elif ready.data in self._strangers:  # not sent away in this very turn
                    self._serve(welcome, ready.data)
            self._send_late_ones_away()
            self._complaints.tick()
        for stranger in list(self._strangers):
            self._send_away(stranger)
        self._selector.close()

    def _accept(self, welcome: Welcome) -> None:
        try:
            connected = self._listener.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # no descriptors, or gone again already
            self._closed.wait(_PAUSE_SECONDS)
            return
        if self._is_full():
            connected.close()
            return
        try:
            stranger = Stranger(connected, welcome, self._key)
            self._selector.register(connected, selectors.EVENT_WRITE, stranger)
        except OSError:  # gone already
            connected.close()
            return
        self._strangers[stranger] = None
        self._serve(welcome, stranger)

    def _is_full(self) -> bool:
        was, self._full = self._full, self.visitors >= MOST_VISITORS
        if self._full and not was:
            _logger.warning("%d decode workers are connected, others are not let in", MOST_VISITORS)
        first = next(iter(self._strangers), None)
        if self._full and first and time.monotonic() >= first.came + FAIR_SECONDS:
            self._send_away(first)
            return False
        return self._full

    def _serve(self, welcome: Welcome, stranger: Stranger) -> None:
        """Say what there is to say, and hear what it says."""
        try:
            stranger.flush()
            message = None if stranger.has_unsent else stranger.read()
            stranger.flush()
            if message is not None:
                self._judge(welcome, stranger, message)
                return
            waits_for = selectors.EVENT_WRITE if stranger.has_unsent else selectors.EVENT_READ
            self._selector.modify(stranger.socket, waits_for, stranger)
        except UninvitedError as error:
            self._complaints.warn("%s %s", stranger.peer, error)
            self._send_away(stranger)
        except (EOFError, OSError, ValueError):  # of msgspec too, and text that is not UTF-8
            self._send_away(stranger)  # gone, or no worker of ours
        except Exception:  # a defect of ours, that shall not keep all others out
            _logger.exception("the greeting of %s failed", stranger.peer)
            if stranger in self._strangers:
                self._send_away(stranger)

    def _judge(self, welcome: Welcome, stranger: Stranger, message: ToPrefill) -> None:
        """Whether a stranger greets rightly, so that it may stay; else it is sent away."""
        here = (welcome.protocol, welcome.fingerprint)
        if not isinstance(message, Hello):
            self._complaints.warn("%s asks for blocks and did not greet us rightly", stranger.peer)
        elif (there := (message.protocol, message.fingerprint)) != here:
            differing = "; ".join(explain(there, here))  # it reads so in our greeting, too
            self._complaints.warn("decode worker %s has other blocks: %s", stranger.peer, differing)
        else:
            self._admit(stranger, message)
            return
        self._send_away(stranger)

    def _admit(self, stranger: Stranger, hello: Hello) -> None:
        self._selector.unregister(stranger.socket)
        # Under the lock its end cannot be noticed before it was added.
        with self._lock, contextlib.suppress(OSError, RuntimeError):  # gone, or no threads
            visitor: Visitor = Channel(
                stranger.socket,
                ToPrefill,
                self._deliver,
                longest_greeting=LONGEST_MESSAGE,
                heard=hello,
            )
            self._guests.add(visitor)
        del self._strangers[stranger]

    def _send_late_ones_away(self) -> None:
        latest = time.monotonic() - GREETING_SECONDS
        for stranger in [each for each in self._strangers if each.came <= latest]:
            self._complaints.warn("%s did not greet us rightly and is sent away", stranger.peer)
            self._send_away(stranger)

    def _send_away(self, stranger: Stranger) -> None:
        del self._strangers[stranger]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.socket)
        with contextlib.suppress(OSError):  # what it was told goes out before the end
            stranger.socket.shutdown(socket.SHUT_RDWR)
        stranger.socket.close()

    # -- their threads -------------------------------------------------------------------------

    def _deliver(self, visitor: Visitor, message: ToPrefill | None) -> None:
        with self._lock:
            if message is None:
                self._guests.discard(visitor)
        if isinstance(message, Ping):  # whatever the engine computes
            visitor.send(Pong())
            return
        sender = None if message is None else visitor
        self._messages.leave((visitor, message), sender, visitor.heard_bytes)

# SPDX-License-Identifier: Apache-2.0
"""The prefill workers known to a decode worker: reconnecting, and choosing which one to ask."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import split_address
from rtp_llm.disagg.transports.client import TransportClient
from rtp_llm.disagg.wire.bounded_queue import BoundedQueue
from rtp_llm.disagg.wire.connection import MessageConnection
from rtp_llm.disagg.wire.differences import explain
from rtp_llm.disagg.wire.message_loop import MessageLoop
from rtp_llm.disagg.wire.messages import (
    LONGEST_WELCOME,
    PROTOCOL,
    Challenge,
    Hello,
    Load,
    Ping,
    Pong,
    Stored,
    ToDecode,
    Welcome,
)
from rtp_llm.disagg.wire.worker_key import KeyMismatchError, WorkerKey, prove_to_prefill_worker
from rtp_llm.engine.waker import Waker

_logger = logging.getLogger("rtp_llm.engine")
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.5
_READ_SECONDS = 1.0  # between two looks at the file of addresses
_REFUSED_SECONDS = 5.0
# A prefill worker sends its handshake as soon as it is connected, whatever it computes: one that
# does not has stopped, or is none.
WELCOME_SECONDS = 10.0
# One that owes us prompts and says nothing is asked so often whether it is there, with so many
# seconds after each question; it answers whatever it computes, so one that does not has stopped.
QUESTIONS = 4
QUESTION_SECONDS = 2.0
_NO_KEY = "it has a worker key and this worker has none (--worker-key-file)"
# Blocks of prompts that a worker is believed to keep; it evicts by itself, so this is a guess.
_REMEMBERED_BLOCKS = 65_536


class MismatchError(RuntimeError):
    """Blocks of the other worker are incompatible or unavailable; the message says why."""


@dataclass(eq=False)
class Peer:
    """One prefill worker. ``connection`` is None while it is not connected; ``heard_at`` is when it
    said something last, ``questioned_at`` when it was last asked whether it is there, in monotonic
    seconds, ``unanswered`` how often in vain; ``trouble`` why it was last not connected."""

    address: str
    connection: MessageConnection[ToDecode] | None = None
    transport: str = ""
    transfer_addresses: tuple[str, ...] = ()  # of its ranks
    refused: str | None = None
    trouble: str = ""
    heard_at: float = 0.0
    questioned_at: float = 0.0
    unanswered: int = 0
    requested_tokens: int = 0  # of prompts that we asked for and have no answer to
    waiting_tokens: int = 0  # of all decode workers, as it said last
    known: OrderedDict[int, None] = field(default_factory=OrderedDict)
    gone: threading.Event = field(default_factory=threading.Event)  # nobody asks it any more
    thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether the worker can be asked for prompts."""
        return self.connection is not None and bool(self.transfer_addresses)

    def remember(self, keys: NDArray[np.int64]) -> None:
        """Note that it computes these blocks, so it will have them for a while."""
        for key in keys.tolist():
            self.known[key] = None
            self.known.move_to_end(key)
        while len(self.known) > _REMEMBERED_BLOCKS:
            self.known.popitem(last=False)

    def known_blocks(self, keys: Sequence[int]) -> int:
        """How many of the first blocks it presumably has."""
        count = 0
        for key in keys:
            if key not in self.known:
                break
            count += 1
        return count


class Peers:
    """All of them; the engine's thread asks, a thread for each keeps it connected."""

    def __init__(
        self,
        addresses: Sequence[str],
        fingerprint: str,
        waker: Waker,
        transports: TransportClient,
        key: WorkerKey | None = None,
        check_ranks: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``check_ranks`` raises ValueError for a worker of so many tensor-parallel ranks whose
        blocks cannot be had."""
        self._key = key
        self.all: list[Peer] = []  # replaced, not changed: any thread may read it
        self._transports, self._check_ranks = transports, check_ranks
        self._hello = Hello(protocol=PROTOCOL, fingerprint=fingerprint)
        self._messages: BoundedQueue[tuple[Peer, MessageConnection[ToDecode], ToDecode | None]]
        self._messages = BoundedQueue(waker.wake)
        self._left: deque[str] = deque()  # addresses that are listed no longer
        self._loop = MessageLoop("prefill workers")
        self._closed, self._changing = threading.Event(), threading.Lock()
        self._update(addresses)

    def follow(self, read: Callable[[], list[str]]) -> None:
        """From now on they are those whose addresses ``read`` gives, which is asked every second.

        While it raises SettingsError, which the log tells once, they stay as they are.
        """
        threading.Thread(target=self._follow, args=(read,), name="addresses", daemon=True).start()

    def _follow(self, read: Callable[[], list[str]]) -> None:
        trouble, before = "", [peer.address for peer in self.all]
        while not self._closed.wait(_READ_SECONDS):
            try:
                addresses = read()
                if addresses == before:  # twice: nobody is writing it
                    self._update(addresses)
                trouble, before = "", addresses
            except SettingsError as error:
                if str(error) != trouble:
                    _logger.warning("prefill workers stay as they are: %s", error)
                trouble = str(error)

    def _update(self, addresses: Sequence[str]) -> None:
        """Connections to workers that are listed no longer end, as if those were lost."""
        with self._changing:
            if not self._closed.is_set():
                self._replace_all(addresses)

    def _replace_all(self, addresses: Sequence[str]) -> None:
        known = {peer.address: peer for peer in self.all}
        self.all = [known.pop(each) if each in known else Peer(each) for each in addresses]
        for peer in known.values():
            peer.gone.set()
            if (connection := peer.connection) is not None:
                connection.close()
            self._left.append(peer.address)
        for peer in self.all:
            if peer.thread is None:
                peer.thread = threading.Thread(
                    target=self._stay_connected, args=(peer,), name=peer.address, daemon=True
                )
                peer.thread.start()

    def take(self) -> list[tuple[Peer, ToDecode | None]]:
        """What the workers said since the last call; None: the connection is lost.

        Handshakes are dealt with here; a worker with other blocks is never asked. The connection to
        one that has stopped is ended.
        """
        self._forget_those_that_left()
        taken: list[tuple[Peer, ToDecode | None]] = []
        for peer, connection, message in self._messages.take():
            peer.heard_at = time.monotonic()
            if isinstance(message, Welcome):
                self._welcomed(peer, connection, message)
            elif peer.connection is connection:
                if message is None:
                    peer.connection, peer.transfer_addresses = None, ()
                    peer.requested_tokens = peer.waiting_tokens = 0
                if isinstance(message, Load):
                    peer.waiting_tokens = message.waiting_tokens
                else:
                    taken.append((peer, message))
        for peer in self.all:
            self._look_after(peer)
        return taken

    def _forget_those_that_left(self) -> None:
        if not self._left:
            return
        listed = {peer.address for peer in self.all}
        while self._left:
            if (address := self._left.popleft()) not in listed:  # again
                self._transports.forget(address)

    def choose(
        self, keys: NDArray[np.int64], block_size: int, without: Sequence[Peer] = ()
    ) -> Peer | None:
        """The worker that has the least to compute until it is done with this prompt.

        That is its waiting work plus the blocks of the prompt (by their keys) that it does not
        have; among equals the one that was asked least. None if only ``without`` is connected.
        """
        names = keys.tolist()

        def cost(peer: Peer) -> tuple[int, int]:
            new = (len(names) - peer.known_blocks(names)) * block_size
            waiting = max(peer.waiting_tokens, peer.requested_tokens)
            return waiting + new, len(peer.known)

        able = [peer for peer in self.all if peer.ready and peer not in without]
        chosen = min(able, key=cost, default=None)
        if chosen is not None:
            self._fall_back_to_tcp(chosen)
        return chosen

    def _fall_back_to_tcp(self, peer: Peer) -> None:
        """Stop using a library that has failed, if TCP is available."""
        instead = self._transports.instead(peer.address, peer.transfer_addresses[0])
        if instead is None:
            return
        reason = "blocks of prefill worker %s go by tcp until it connects anew: %s failed, %s"
        _logger.warning(reason, peer.address, peer.transport, instead[0])
        peer.transport, peer.transfer_addresses = instead[1]

    def close(self) -> None:
        """End all connections."""
        with self._changing:
            self._closed.set()
            for peer in self.all:
                peer.gone.set()
        self._loop.close()

    def _look_after(self, peer: Peer) -> None:
        """Ask one that owes us prompts and says nothing whether it is there; when it has stopped,
        leave it alone until its next handshake."""
        if peer.connection is None or not peer.requested_tokens:
            return
        if peer.heard_at >= peer.questioned_at:
            peer.unanswered = 0
        # Not by the time alone: it may be this worker that was stopped.
        if time.monotonic() - max(peer.heard_at, peer.questioned_at) < QUESTION_SECONDS:
            return
        peer.questioned_at = time.monotonic()
        if peer.unanswered < QUESTIONS:
            peer.unanswered += 1
            peer.connection.send(Ping())
        else:
            _logger.warning("prefill worker %s says nothing and is left out", peer.address)
            peer.connection.close()

    def _welcomed(
        self, peer: Peer, connection: MessageConnection[ToDecode], welcome: Welcome
    ) -> None:
        if peer.gone.is_set():  # meanwhile
            connection.close()
            return
        there = (welcome.protocol, welcome.fingerprint)
        here = (self._hello.protocol, self._hello.fingerprint)
        if there != here:
            lines = [
                "its blocks are not ours.",
                f"  there: protocol {there[0]}, {there[1]}",
                f"  here:  protocol {here[0]}, {here[1]}",
                *(f"  {line}" for line in explain(there, here)),
            ]
            self._refuse(peer, connection, "\n".join(lines))
            return
        host, _ = split_address("prefill_workers", peer.address)
        try:
            met = self._transports.meet(peer.address, host, welcome.offers)
            self._check_ranks(len(met[1]))
        except ValueError as error:
            self._refuse(peer, connection, str(error))
            return
        peer.connection, (peer.transport, peer.transfer_addresses) = connection, met
        peer.refused = None
        if peer.gone.is_set():  # just now
            connection.close()
            return
        _logger.info("prefill worker %s is connected, blocks by %s", peer.address, peer.transport)

    @staticmethod
    def _refuse(peer: Peer, connection: MessageConnection[ToDecode], reason: str) -> None:
        """Refuse a worker; the handshake is retried, but its failure is logged only once."""
        refused = f"prefill worker {peer.address} cannot be used, {reason}"
        if refused != peer.refused:
            _logger.error("%s", refused)
        peer.refused = refused
        connection.close()

    def _stay_connected(self, peer: Peer) -> None:
        """Connect, wait for the end of the connection, connect again."""
        while not peer.gone.is_set():
            trouble = self._visit(peer)
            if trouble and trouble != peer.trouble:
                _logger.warning("prefill worker %s cannot be asked: %s", peer.address, trouble)
            peer.trouble = trouble
            peer.gone.wait(_REFUSED_SECONDS if peer.refused else _RETRY_SECONDS)

    def _visit(self, peer: Peer) -> str:
        """Serve one connection from start to end; returns why it was unusable, if it was."""
        ended, welcomed = threading.Event(), threading.Event()
        try:
            address = split_address("prefill_workers", peer.address)
            connected = self._connect(address)
            deliver = self._deliverer(peer, ended, welcomed)
            connection = MessageConnection(
                self._loop, connected, ToDecode, deliver, self._hello, LONGEST_WELCOME
            )
        except KeyMismatchError as error:
            return self._note_key(peer, str(error))
        except (EOFError, OSError, RuntimeError, ValueError) as error:
            return str(error) or "the connection ended"  # not there, or closed, or none of ours
        if not ended.wait(WELCOME_SECONDS) and not welcomed.is_set():
            connection.close()
        ended.wait()
        if welcomed.is_set():
            return ""
        key_missing = self._key is None and (peer.refused or "").endswith(_NO_KEY)
        return _NO_KEY if key_missing else "it sent no valid prefill-worker handshake"

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        connected = socket.create_connection(address, timeout=_CONNECT_SECONDS)
        if self._key is None:
            return connected
        with contextlib.ExitStack() as failing:
            failing.callback(connected.close)
            prove_to_prefill_worker(connected, self._key, WELCOME_SECONDS)
            failing.pop_all()
        return connected

    @staticmethod
    def _note_key(peer: Peer, trouble: str) -> str:
        """At the start it is an error."""
        peer.refused = f"prefill worker {peer.address} cannot be used, {trouble}"
        return trouble

    def _deliverer(
        self, peer: Peer, ended: threading.Event, welcomed: threading.Event
    ) -> Callable[[MessageConnection[ToDecode], ToDecode | None], None]:
        def deliver(connection: MessageConnection[ToDecode], message: ToDecode | None) -> None:
            if isinstance(message, Stored | Pong):  # not for the engine, whose steps take time
                if peer.connection is connection:
                    peer.heard_at = time.monotonic()
                    if isinstance(message, Stored):
                        self._transports.hear(peer.address, message, connection)
                return
            if isinstance(message, Challenge):  # with a key it was answered before
                self._note_key(peer, _NO_KEY)
                connection.close()
                return
            if isinstance(message, Welcome):
                connection.trust()
                welcomed.set()
            sender = None if message is None else connection
            self._messages.put((peer, connection, message), sender, connection.heard_bytes)
            if message is None:
                ended.set()

        return deliver


def wait_for_all(peers: Peers, seconds: float) -> None:
    """Give all workers a moment, so that the first request need not be computed alone.

    Raises MismatchError if a worker with incompatible blocks answers.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        peers.take()
        if refused := next((peer.refused for peer in peers.all if peer.refused), None):
            peers.close()
            raise MismatchError(refused)
        if all(peer.ready for peer in peers.all):
            return
        time.sleep(0.02)

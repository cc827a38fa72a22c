# SPDX-License-Identifier: Apache-2.0
"""The decode side of a pull connector: a thread that reads what prefill workers export."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.device import Event
from rtp_llm.disagg.transports.generation_counters import GenerationCounters
from rtp_llm.disagg.transports.interface import Library, Region
from rtp_llm.disagg.transports.match import rows_from
from rtp_llm.disagg.transports.peer_memory import PeerMemory
from rtp_llm.disagg.transports.pull_load import PullLoad
from rtp_llm.disagg.wire.bounded_queue import BoundedQueue, Sender
from rtp_llm.disagg.wire.messages import Offer, Stored
from rtp_llm.engine.waker import Waker

_logger = logging.getLogger("rtp_llm.engine")
_MAX_LOADS = 1024
# How often readings are asked for: no library tells by a descriptor when one has ended. They are
# asked sooner after something has happened, as most take less than the longer time.
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.00005, 0.0005
# How often deadlines are looked at.
_TICK_SECONDS = 0.05


class PullClient:
    """``Client`` over a library. All of the library's calls are made by one thread."""

    def __init__(self, library: Library, regions: Sequence[Region]) -> None:
        """``regions``: where loads may write to."""
        self._library = library
        self._counters = GenerationCounters(_MAX_LOADS)
        self._ours = [*regions, self._counters.region]
        self._waker = Waker()
        self._orders: BoundedQueue[Callable[[], None]] = BoundedQueue()
        self._taken: deque[Callable[[], None]] = deque()
        self._met: dict[str, PeerMemory] = {}  # of the caller's thread
        self._peers: dict[str, PeerMemory] = {}
        self._loads: dict[str, PullLoad] = {}
        self._poll_seconds = _LAST_POLL_SECONDS
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kv pull", daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------

    def meet(self, address: str, host: str, offer: Offer) -> None:
        """A peer says where its memory is. Raises ValueError for what is no memory."""
        peer = PeerMemory(self._library, self._ours, host, offer)
        self._met[address] = peer
        self._orders.put(lambda: self._replace(address, peer))

    def forget(self, address: str) -> None:
        """Nobody loads from this peer any more, if it was met at all."""
        if self._met.pop(address, None) is not None:
            self._orders.put(lambda: self._replace(address, None))

    def trouble(self, address: str) -> str:
        """How the library failed with a peer since we met it; nothing if it did not."""
        return self._met[address].trouble

    def load(
        self,
        address: str,
        request: str,
        layers: Sequence[tuple[int, NDArray[np.int64]]],
        *,
        timeout: float,
        free: Event | None = None,
    ) -> PullLoad:
        """See Client. Raises ValueError for arguments that make no sense."""
        load = PullLoad(address, request, layers, timeout, self._cancel, free)
        self._orders.put(lambda: self._begin(load))
        return load

    def hear(self, address: str, stored: Stored, sender: Sender) -> None:
        """The peer has blocks; ``sender`` is paused while it said more than is looked at."""
        self._orders.put(lambda: self._offer(address, stored), sender, len(stored.rows))

    def fileno(self) -> int:
        """See Client."""
        return self._waker.descriptor

    def clear(self) -> None:
        """See Client."""
        self._waker.clear()

    def close(self) -> None:
        """See Client."""
        self._closed.set()
        self._orders.put(lambda: None)
        self._thread.join()

    def _cancel(self, load: PullLoad) -> None:
        self._orders.put(lambda: load.fail("cancelled", "it was given up"))

    # -- its own thread ------------------------------------------------------------------------

    def _work(self) -> None:
        self._library.attach()
        while not self._closed.is_set():
            try:
                self._obey(self._pause())
                for load in list(self._loads.values()):
                    self._advance(load)
            except Exception as error:  # of a library, that no one expected
                _logger.exception("blocks could not be read")
                self._drop_all("unknown", repr(error), trouble=repr(error))
        self._drop_all("cancelled", "the client is closed")

    def _drop_all(self, code: str, reason: str, trouble: str = "") -> None:
        for peer in self._peers.values():
            self._cut(peer, trouble)
        for load in list(self._loads.values()):
            load.fail(code, reason)
            self._advance(load)

    @staticmethod
    def _cut(peer: PeerMemory, trouble: str = "") -> None:
        """Drop the connection whatever the library says; its loads fail."""
        try:
            peer.cut(trouble)
        except Exception:  # of a library, that no one expected
            _logger.exception("closing the connection to a prefill worker's memory failed")

    def _pause(self) -> float | None:
        """Seconds until there is something to look at without an order."""
        if any(load.reading for load in self._loads.values()):
            self._poll_seconds = min(2 * self._poll_seconds, _LAST_POLL_SECONDS)
            return self._poll_seconds
        return _TICK_SECONDS if self._loads else None

    def _obey(self, pause: float | None) -> None:
        """Take the orders that there are; wait for the first one."""
        self._taken.extend(self._orders.take(0.0 if self._taken else pause))
        if self._taken:
            self._poll_seconds = _FIRST_POLL_SECONDS
        while self._taken:  # one that fails leaves the others for the next time
            self._taken.popleft()()

    def _peer(self, address: str) -> PeerMemory:
        if address not in self._peers:
            self._peers[address] = PeerMemory(self._library, self._ours, "", None)
        return self._peers[address]

    def _replace(self, address: str, peer: PeerMemory | None) -> None:
        """It is another process now, or connects anew, or (None) is listed no longer: nothing comes
        from the old one."""
        if (old := self._peers.get(address)) is not None:
            self._cut(old)
            reason = "the peer has connected anew" if peer else "the peer is listed no longer"
            for load in [each for each in self._loads.values() if each.address == address]:
                load.fail("peer_lost", reason)
                self._advance(load)
        if peer is None:
            self._peers.pop(address, None)
        else:
            self._peers[address] = peer

    def _begin(self, load: PullLoad) -> None:
        if len(self._loads) >= _MAX_LOADS or load.request in self._loads:
            load.fail("queue_full", f"{len(self._loads)} loads are under way")
        else:
            self._loads[load.request] = load
        self._advance(load)

    def _offer(self, address: str, stored: Stored) -> None:
        load = self._loads.get(str(stored.name))
        if load is None or load.address != address:  # given up, or not what it was asked for
            return
        try:
            load.offered(stored.layer, rows_from(stored.rows), stored.counter, self._peer(address))
        except ValueError as error:
            load.fail("invalid_params", str(error))

    def _advance(self, load: PullLoad) -> None:
        if load.advance(self._counters, self._peer(load.address)):
            self._poll_seconds = _FIRST_POLL_SECONDS
            self._waker.wake()
        if load.done and self._loads.get(load.request) is load:
            del self._loads[load.request]

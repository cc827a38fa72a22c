# SPDX-License-Identifier: Apache-2.0
"""One prompt's blocks on their way: what is asked for, what has come, how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.device import Event
from rtp_llm.disagg.transports.generation_counters import GenerationCounters
from rtp_llm.disagg.transports.interface import ReadError, Reading
from rtp_llm.disagg.transports.match import LayerMatch, counter_piece
from rtp_llm.disagg.transports.peer_memory import PeerMemory

# A reading that goes on for so long after its load was given up is cut off, with its peer.
CUT_SECONDS = 10.0


class PullLoad:
    """A ``LoadHandle`` for any thread; the client's thread calls ``offered`` and ``advance``.

    When all blocks are here the counter of the request is read: see GenerationCounters.
    """

    def __init__(
        self,
        address: str,
        request: str,
        layers: Sequence[tuple[int, NDArray[np.int64]]],
        timeout: float,
        give_up: Callable[[PullLoad], None],
        free: Event | None = None,
    ) -> None:
        """``free``: nothing is written before it is reached; the device may still use the places.

        Raises ValueError for rows or a name that make no sense.
        """
        self.address, self.request = address, request
        self._name = int(request)
        self._wanted = {layer: LayerMatch(rows) for layer, rows in layers if len(rows)}
        self._give_up, self._free = give_up, free
        self._held: list[tuple[int, NDArray[np.int64]]] = []  # layer, pieces: not read yet
        self._began = time.monotonic()
        self._deadline = self._began + timeout
        self._under_way: list[
            tuple[int | None, Reading, int]
        ] = []  # layer, None: the counter; cuts
        self._their_counter = 0
        self._counter: int | None = None  # ours, while it is read
        self._lock = threading.Lock()
        self._arrived: list[int] = []
        self._failure: tuple[str, str, float] | None = None  # code, reason, when
        self._ended = threading.Event()

    # -- any thread ----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """See LoadHandle."""
        return self._ended.is_set()

    @property
    def code(self) -> str:
        """See LoadHandle."""
        return self._failure[0] if self._failure else "none"

    @property
    def message(self) -> str:
        """See LoadHandle."""
        if self._failure is None:
            return ""
        code, reason, when = self._failure
        passed = f"{when - self._began:.3f} s"
        return (
            f"load of {self.request} from {self.address} failed after {passed}: {reason} ({code})"
        )

    def poll(self) -> list[int]:
        """See LoadHandle."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, timeout: float) -> bool:
        """Wait until it is done, at most ``timeout`` seconds; whether it is."""
        return self._ended.wait(timeout)

    def cancel(self) -> None:
        """See LoadHandle."""
        self._give_up(self)

    # -- the client's thread -------------------------------------------------------------------

    def fail(self, code: str, reason: str) -> None:
        """Give it up, unless it has ended or failed already."""
        if self._failure is None and not self.done:
            self._failure = (code, reason, time.monotonic())

    @property
    def reading(self) -> bool:
        """Bytes are under way, or will be without another order."""
        return bool(self._under_way or self._held)

    def offered(self, layer: int, rows: NDArray[np.int64], counter: int, peer: PeerMemory) -> None:
        """Begin to read what is wanted of these blocks of the peer."""
        wanted = self._wanted.get(layer)
        if self._failure is not None or wanted is None:
            return
        self._their_counter = counter
        try:
            self._held.append((layer, wanted.take(rows, peer.regions)))
        except ValueError as error:
            self.fail("invalid_params", str(error))
        self._begin_held(peer)

    def _begin_held(self, peer: PeerMemory) -> None:
        """Read what was offered, as soon as its places are free."""
        if self._failure is not None:
            self._held = []
        if not self._held or (self._free is not None and not self._free.query()):
            return
        self._free = None
        held, self._held = self._held, []
        for layer, pieces in held:
            if self._failure is None:
                self._read(layer, pieces, peer)

    def advance(self, counters: GenerationCounters, peer: PeerMemory) -> bool:
        """See what came, begin what comes next; whether a layer has arrived or it is done."""
        self._begin_held(peer)
        moved = self._collect(peer)
        now = time.monotonic()
        if now > self._deadline:
            self.fail("prefill_timeout", "the blocks did not come in time")
        if self._failure is None and not self._wanted and not self._under_way:
            self._confirm(counters, peer)
        if self._failure is not None and self._under_way and now > self._failure[2] + CUT_SECONDS:
            peer.cut("a reading did not end")
            self._collect(peer)
        if self._failure is not None and not self._under_way:
            self._end(counters)
        return moved or self.done

    def _read(self, layer: int | None, pieces: NDArray[np.int64], peer: PeerMemory) -> None:
        if not len(pieces):
            return
        try:
            self._under_way.append((layer, peer.read(pieces), peer.cuts))
        except ReadError as error:
            self.fail("connect_failed", str(error))

    def _collect(self, peer: PeerMemory) -> bool:
        """Forget readings that have ended; whether a layer is complete by that."""
        self._under_way = [each for each in self._under_way if not self._has_ended(each, peer)]
        if self._failure is not None:
            return False
        busy = {layer for layer, *_ in (*self._under_way, *self._held)}
        arrived = [
            layer for layer, want in self._wanted.items() if want.found and layer not in busy
        ]
        for layer in arrived:
            del self._wanted[layer]
        with self._lock:
            self._arrived += arrived
        return bool(arrived)

    def _has_ended(self, each: tuple[int | None, Reading, int], peer: PeerMemory) -> bool:
        _, reading, cuts = each
        if cuts != peer.cuts:
            self.fail("peer_lost", "the connection to the peer's memory was closed")
            return True
        try:
            return reading.poll()
        except ReadError as error:
            self.fail("peer_lost", str(error))
            peer.cut(str(error))
            return True

    def _confirm(self, counters: GenerationCounters, peer: PeerMemory) -> None:
        """All layers are here: read the counter, then look at it."""
        if self._counter is not None:
            if counters.read(self._counter) != self._name:
                self.fail("request_ended", "the peer released the blocks before they were read")
            self._end(counters)
            return
        if not self._their_counter:  # nothing was asked for
            self._end(counters)
            return
        self._counter = counters.take()
        if self._counter is None:
            self.fail("queue_full", "too many loads are under way")
            return
        try:
            piece = counter_piece(
                self._their_counter, counters.address(self._counter), peer.regions
            )
        except ValueError as error:
            self.fail("invalid_params", str(error))
            return
        self._read(None, piece, peer)

    def _end(self, counters: GenerationCounters) -> None:
        if self._counter is not None:
            counters.give_back(self._counter)
            self._counter = None
        self._ended.set()

# SPDX-License-Identifier: Apache-2.0
"""The prefill side of a pull connector: tells decode workers where each layer's blocks lie."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.generation_counters import GenerationCounters
from rtp_llm.disagg.wire.messages import Stored

Notify = Callable[[Stored], None]


@dataclass
class _Offered:
    notify: Notify
    counter: int
    owners: list[object] = field(default_factory=list)


class ExportTable:
    """Blocks that decode workers pull; any thread may store.

    A request's memory is free once it has ended: the decode worker has its blocks, has gone, or
    has timed out. One that still reads sees by the request's generation counter that it is late.
    """

    def __init__(self, counters: GenerationCounters) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._offered: dict[str, _Offered] = {}

    def begin(self, request: str, notify: Notify) -> None:
        """Call ``notify`` with each block of this request. Raises ValueError: too many requests."""
        with self._lock:
            counter = self._counters.take(int(request))
            if counter is None:
                raise ValueError("too many prompts are held for other workers")
            self._offered[request] = _Offered(notify, counter)

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        """Offer blocks int64 [N, 7], keep ``owner``; False: the request has ended."""
        with self._lock:
            offered = self._offered.get(request)
            if offered is None:
                return False
            offered.owners.append(owner)
            address = self._counters.address(offered.counter)
            rows = np.ascontiguousarray(blocks).tobytes()
            offered.notify(Stored(name=int(request), layer=layer, rows=rows, counter=address))
            return True

    def end(self, request: str) -> None:
        """Whoever reads from now on will find out; then its memory goes."""
        with self._lock:
            if (offered := self._offered.pop(request, None)) is not None:
                self._counters.give_back(offered.counter)

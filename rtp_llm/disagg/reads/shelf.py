"""The prefill side: tells who asked where each layer's blocks lie, and until when they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.messages import Stored
from rtp_llm.disagg.reads.words import Words

Tell = Callable[[Stored], None]


@dataclass
class _Offered:
    tell: Tell
    word: int
    owners: list[object] = field(default_factory=list)


class Shelf:
    """Blocks that decode workers read by themselves; any thread may store.

    A request's memory is free once it was ended: that is when the decode worker has it, has gone,
    or has lost its patience. One that reads on sees by the request's word that it is too late.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._offered: dict[str, _Offered] = {}

    def begin(self, request: str, tell: Tell) -> None:
        """Blocks of this request are told of by ``tell``. Raises ValueError: too many requests."""
        with self._lock:
            word = self._words.take(int(request))
            if word is None:
                raise ValueError("too many prompts are held for other workers")
            self._offered[request] = _Offered(tell, word)

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        """Offer blocks int64 [N, 7], keep ``owner``; False: the request has ended."""
        with self._lock:
            offered = self._offered.get(request)
            if offered is None:
                return False
            offered.owners.append(owner)
            address = self._words.address(offered.word)
            rows = np.ascontiguousarray(blocks).tobytes()
            offered.tell(Stored(name=int(request), layer=layer, rows=rows, word=address))
            return True

    def end(self, request: str) -> None:
        """Whoever reads from now on will find out; then its memory goes."""
        with self._lock:
            if (offered := self._offered.pop(request, None)) is not None:
                self._words.give_back(offered.word)

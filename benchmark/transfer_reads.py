"""The far side of a transport by reads, in a process of its own, and loads from it."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.interface import HOST
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks

Layers = Sequence[tuple[int, NDArray[np.int64]]]
_PATIENCE = 600.0


class ReadsFrom:
    """A prefill process that tells where its blocks are, and a decode side in this one."""

    def __init__(
        self,
        transport: str,
        target: NDArray[np.uint8],
        layers: Callable[[NDArray[np.uint8]], Layers],
    ) -> None:
        """``layers`` makes the blocks of a memory as large as ``target``, on either side."""
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        work = (far, transport, target.nbytes, layers)
        self._process = context.Process(target=_offer, args=work, daemon=True)
        self._process.start()
        offers = self._pipe.recv()
        self._transports = take_blocks(transport, "", [(target.ctypes.data, target.nbytes, HOST)])
        _, self._address = self._transports.meet("far", "127.0.0.1", offers)
        self._layers = layers(target)
        self._names = itertools.count(1)
        threading.Thread(target=self._hear, daemon=True).start()

    def move(self) -> float:
        """Seconds that all blocks take, from the order to store them on."""
        name = next(self._names)
        began = time.perf_counter()
        load = self._transports.load(self._address, str(name), self._layers, timeout=_PATIENCE)
        self._pipe.send(name)
        while not load.done:
            time.sleep(0.0002)
        seconds = time.perf_counter() - began
        if load.code != "none":
            raise SystemExit(load.message)
        return seconds

    def close(self) -> None:
        """End both sides."""
        self._transports.close()
        self._pipe.send(None)
        self._process.join()

    def _hear(self) -> None:
        while True:
            try:
                stored = self._pipe.recv()
            except EOFError:
                return
            self._transports.hear("far", stored, self)

    def pause(self) -> None:
        """As a connection: what is told here is never too much."""

    def resume(self) -> None:
        """As a connection."""


def _offer(
    pipe: Connection, transport: str, size: int, layers: Callable[[NDArray[np.uint8]], Layers]
) -> None:
    memory = np.ones(size, np.uint8)
    regions = [(memory.ctypes.data, memory.nbytes, HOST)]
    stores, offers = offer_blocks(transport, "127.0.0.1", "", regions, _PATIENCE)
    pipe.send(offers)
    while (name := pipe.recv()) is not None:
        stores.end(str(name - 1))
        stores.begin(str(name), transport, pipe.send)
        for layer, blocks in layers(memory):
            stores.store(str(name), layer, blocks)
    stores.close()

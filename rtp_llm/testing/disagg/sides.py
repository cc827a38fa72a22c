# SPDX-License-Identifier: Apache-2.0
"""Both sides of a transport in one process: memory there, memory here, and what goes between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from rtp_llm.config.roles import is_installed
from rtp_llm.disagg.transports.endpoints import LoadHandle
from rtp_llm.disagg.transports.interface import HOST
from rtp_llm.disagg.transports.libraries import LIBRARIES
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.disagg.wire.messages import Stored
from rtp_llm.testing.disagg.copying import CopyingLibrary
from rtp_llm.worker.cache.transfer.layout import BlockPart, make_rows

BLOCK_BYTES = 4096
BLOCKS = 256
TIMEOUT = 30.0


class Sides:
    """A prefill worker's store over ``there`` and a decode worker's client over ``here``."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self._goes_on = threading.Event()
        self._goes_on.set()
        random = np.random.default_rng()
        self.there = random.integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
        self.here = np.zeros_like(self.there)
        regions = [(memory.ctypes.data, memory.nbytes, HOST) for memory in (self.there, self.here)]
        self.stores, self.offers = offer_blocks(transport, "127.0.0.1", "f", regions[:1], TIMEOUT)
        self.transports = take_blocks(transport, "f", regions[1:])
        _, (self.address,) = self.transports.meet("peer", "127.0.0.1", self.offers)

    def rows(self, memory: NDArray[np.uint8], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Blocks of a memory, each at the position of its number, as rows of a layer."""
        part = BlockPart(blocks, blocks * 7, blocks)
        return make_rows(0, part, memory.ctypes.data + blocks * BLOCK_BYTES, BLOCK_BYTES)

    def begin(self, name: int) -> None:
        """A request is asked for: the prefill worker tells of its blocks."""
        self.stores.begin(str(name), self.transport, self._notify)

    def _notify(self, stored: Stored) -> None:
        assert self._goes_on.wait(TIMEOUT)
        self.transports.hear("peer", stored, self)

    def pause(self) -> None:
        """As a connection: what is stored is told later."""
        self._goes_on.clear()

    def resume(self) -> None:
        """As a connection."""
        self._goes_on.set()

    def store(self, name: int, layer: int, blocks: NDArray[np.int64]) -> bool:
        """The prefill worker has computed blocks."""
        return self.stores.store(str(name), layer, self.rows(self.there, blocks))

    def load(self, name: int, *layers: NDArray[np.int64], timeout: float = TIMEOUT) -> LoadHandle:
        """The decode worker wants these blocks of each layer."""
        rows = [(layer, self.rows(self.here, blocks)) for layer, blocks in enumerate(layers)]
        return self.transports.load(self.address, str(name), rows, timeout=timeout)

    def equal(self, blocks: NDArray[np.int64]) -> bool:
        """These have come, and no other."""
        expected = np.zeros_like(self.there)
        expected[blocks] = self.there[blocks]
        return bool((self.here == expected).all())

    def close(self) -> None:
        """End both."""
        self.transports.close()
        self.stores.close()


def wait_for(condition: Callable[[], bool], seconds: float = TIMEOUT) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.001)


@contextmanager
def transport_called(name: str, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """What to give --kv-transport for "tcp", "copying" (in the place of nixl) or a library.

    Skips where the library is not installed.
    """
    if name == "copying":
        library = CopyingLibrary()
        patch.setitem(LIBRARIES, "nixl", lambda device: library)
        patch.setattr("rtp_llm.config.roles.is_installed", lambda transport: True)
    elif name != "tcp" and not is_installed(name):
        pytest.skip(f"{name} is not installed")
    yield "nixl" if name == "copying" else name

# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a connector: the prefill side's store, the decode side's client and its loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Store(Protocol):
    """Blocks that are ready to be fetched, on the prefill side; any thread may call."""

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        """Offer blocks int64 [N, 7] of a layer; the memory stays as it is until ``busy`` is false
        after ``end``. Keeps ``owner`` as long. False: the request has ended."""

    def end(self, request: str) -> None:
        """Nothing more is sent of it than what is being sent now."""

    def busy(self, request: str) -> bool:
        """Some of its memory is being read."""

    def fileno(self) -> int:
        """Readable when a request that ended is not busy any more."""

    def take_released(self) -> list[str]:
        """Requests that ended and are not busy any more, each once."""


class LoadHandle(Protocol):
    """A load under way."""

    @property
    def done(self) -> bool:
        """The load has ended: nothing writes to the blocks any more."""

    @property
    def code(self) -> str:
        """ "none" when everything arrived, else what went wrong."""

    @property
    def message(self) -> str:
        """That in words, with both addresses and the time it took."""

    def poll(self) -> list[int]:
        """Layers that arrived since the last call."""

    def cancel(self) -> None:
        """Give it up; returns at once, ``done`` follows."""


class Client(Protocol):
    """Fetches blocks, on the decode side."""

    def load(
        self,
        address: str,
        request: str,
        layers: Sequence[tuple[int, NDArray[np.int64]]],
        *,
        timeout: float,
        partition: tuple[int, int] = (1, 0),
    ) -> LoadHandle:
        """Begin to fetch blocks into the addresses of these rows, as they become ready;
        ``partition``: slice (count, index) of each stored row."""

    def fileno(self) -> int:
        """Readable when some load got on."""

    def clear(self) -> None:
        """Make it unreadable again."""

    def close(self) -> None:
        """End its connections and threads."""

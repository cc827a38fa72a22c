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
        """Offer blocks int64 [N, 7] of a layer; the memory must not change until ``busy`` is false
        after ``end``. Keeps ``owner`` until then. Returns False if the request has ended."""

    def end(self, request: str) -> None:
        """End a request: nothing more of it is sent than what is being sent now."""

    def busy(self, request: str) -> bool:
        """Whether some memory of the request is being read."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when an ended request is not busy any more."""

    def take_released(self) -> list[str]:
        """Return requests that have ended and are not busy any more, each once."""


class LoadHandle(Protocol):
    """A load in progress."""

    @property
    def done(self) -> bool:
        """Whether the load has ended, so that nothing writes to the blocks any more."""

    @property
    def code(self) -> str:
        """ "none" when everything arrived, else what went wrong."""

    @property
    def message(self) -> str:
        """The failure in words, with both addresses and the elapsed time."""

    def poll(self) -> list[int]:
        """Return layers that arrived since the last call."""

    def cancel(self) -> None:
        """Cancel the load; returns at once, ``done`` becomes true later."""


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
        """A descriptor that becomes readable when a load has progressed."""

    def clear(self) -> None:
        """Make the descriptor unreadable again."""

    def close(self) -> None:
        """End the client's connections and threads."""

# SPDX-License-Identifier: Apache-2.0
"""What copies of blocks need from whoever stores, sends or counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm.worker.cache.transfer.layout import PromptBlocks


class BlockStore(Protocol):
    """Takes blocks of requests; any thread may call."""

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        """Take blocks int64 [N, 7] (see layout.py) of a layer.

        ``owner`` is kept as long as their memory is read. Returns False if the request has ended.
        """


class Counters(Protocol):
    """Counters of transfers; any thread may call."""

    def add(self, **amounts: float) -> None:
        """Add amounts to counters by their names."""


class SendBuffer(Protocol):
    """Takes the blocks of a layer to where they are fetched from; called by worker threads."""

    def send(self, layer: int, prompts: Sequence[PromptBlocks]) -> None:
        """Offer them; they are written. Raises what the store raises."""

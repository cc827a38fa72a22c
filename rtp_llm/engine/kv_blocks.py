# SPDX-License-Identifier: Apache-2.0
"""Cache blocks that a KV connector reads, writes or keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.kv_connector import Allocation, EvictedBlocks

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.engine.open_sequences import OpenSequences
    from rtp_llm.worker.worker import Worker


class KvBlocks:
    """Blocks of the engine's sequences; for the engine's thread only.

    ``changed`` is called when blocks may have become free, or there is something to compute.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        sequences: OpenSequences,
        changed: Callable[[], None],
    ) -> None:
        self._scheduler, self._worker, self._sequences = scheduler, worker, sequences
        self._changed = changed

    def keys(self, sequence: int) -> NDArray[np.uint64]:
        """Return the keys uint64 [N, 2] of a live sequence's full blocks before its last token; see
        EvictedBlocks. Empty if it does not use the prefix cache."""
        return self._scheduler.block_keys(sequence)

    def pin(self, sequence: int, first: int, end: int) -> tuple[NDArray[np.int32], ...]:
        """Keep entries [first, end) of a sequence's block tables, whatever happens to it; returns
        the blocks, per cache group."""
        return self._scheduler.pin(sequence, first, end)

    def unpin(self, sequence: int) -> None:
        """Release pinned blocks, once nothing reads or writes them any more."""
        self._scheduler.unpin(sequence)
        self._changed()

    def finish_load(self, sequence: int, arrived: int) -> None:
        """Compute the rest of a sequence whose first ``arrived`` tokens are in its blocks.

        Also before they are there, if the load cannot fail and the worker side lets layers wait.
        With window or recurrent groups all tokens that were matched must arrive.
        """
        self._scheduler.finish_load(sequence, arrived)
        self._changed()

    def takes_draft_state(self, state: bytes) -> bool:
        """Whether drafts can continue from the state that another worker sent."""
        return self._worker.takes_draft_state(state)

    def finish_recv(
        self, sequence: int, slot: int, token: int, *, cached_tokens: int, draft_state: bytes = b""
    ) -> int:
        """Continue a sequence once all blocks of its prompt are written.

        ``token`` is the first one of the output; drafts after it start from ``draft_state``.
        Returns why the sequence ended with that token, 0 if it goes on.
        """
        finish = self._scheduler.finish_recv(sequence, token, cached_tokens=cached_tokens)
        self._sequences.receive(sequence, token, ended=finish != 0)
        if not finish:
            self._worker.receive(sequence, slot, token, draft_state)
        return finish

    def recompute(self, sequence: int) -> None:
        """Compute here, in its turn, what was to be loaded."""
        self._scheduler.recompute(sequence)
        self._changed()

    def take_allocations(self) -> list[Allocation]:
        """Return sequences that were given blocks for what the connector loads, each once."""
        return [Allocation(*each) for each in self._scheduler.take_receivers()]

    def take_evicted(self) -> EvictedBlocks | None:
        """Return the blocks that were evicted since the last call; None: none."""
        evicted = self._scheduler.take_evicted()
        return None if evicted is None else EvictedBlocks(*evicted)

# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of prompts that are computed by another worker, or for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.engine.open_sequences import OpenSequences
    from rtp_llm.worker.worker import Worker


class RemotePrompts:
    """Cache blocks that transfers read or write; for the engine's thread only.

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

    def pin(self, sequence: int, first: int, end: int) -> tuple[NDArray[np.int32], ...]:
        """Keep entries [first, end) of a sequence's block tables, whatever happens to it; returns
        the blocks, per cache group."""
        return self._scheduler.pin(sequence, first, end)

    def unpin(self, sequence: int) -> None:
        """Release blocks pinned for a transfer, once nothing reads or writes them any more."""
        self._scheduler.unpin(sequence)
        self._changed()

    def take_receivers(self) -> list[tuple[int, int, int]]:
        """Return sequences that got blocks for a prompt computed by another worker, each once: id,
        slot, and the tokens served by the prefix cache."""
        return self._scheduler.take_receivers()

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

    def prefill_locally(self, sequence: int) -> None:
        """Compute here, in its turn, a prompt that was to come from another worker."""
        self._scheduler.prefill_locally(sequence)
        self._changed()

# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of a KV connector: what arrives from or goes to somewhere else.

Names are those of vLLM's KVConnectorBase_V1 where the meaning is the same. The worker side is
rtp_llm/worker/kv_connector.py; messages pass between both through a RankGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.messages import AddRequest, EngineOutput, EngineStats

_logger = getLogger("rtp_llm.engine")


class Allocation(NamedTuple):
    """A sequence that was given blocks for tokens [num_computed_tokens, end), which the connector
    said it would load. ``slot`` is the sequence's slot in the scheduler."""

    sequence: int
    slot: int
    num_computed_tokens: int
    end: int


class EvictedBlocks(NamedTuple):
    """Blocks that the prefix cache has forgotten, in order.

    ``keys`` uint64 [N, 2] stand for all tokens up to the end of each block. They are equal in all
    processes but not cryptographic: whoever stores blocks of several tenants compares ``tokens``
    int32 [N, block size] too. ``groups`` and ``blocks`` int32 [N] say where the content is.
    """

    keys: NDArray[np.uint64]
    groups: NDArray[np.int32]
    blocks: NDArray[np.int32]
    tokens: NDArray[np.int32]


class KvConnector:
    """By default nothing arrives and nothing goes. Only the engine's thread calls it.

    A connector gets its blocks from `Engine.kv_blocks`. It ends each `Allocation` with
    `finish_load`, `finish_recv` or `recompute`; a load that fails must end in one of them, or in an
    abort of its request alone.
    """

    # -- requests --------------------------------------------------------------------------------

    def add_request(self, request: AddRequest, seeds: Sequence[int]) -> None:
        """Take note of a request that was accepted, with the seeds of its sequences."""
        return

    def get_num_new_matched_tokens(self, sequence: int, num_computed_tokens: int) -> int:
        """Return how many tokens of a sequence can be loaded, in addition to those that the prefix
        cache has.

        Called when the sequence, which has no siblings, is about to be admitted, also after a
        preemption; perhaps several times, until there are blocks for it.
        """
        return 0

    def update_state_after_alloc(self, allocation: Allocation) -> None:
        """Start to load: the sequence has blocks for the tokens that were matched."""
        return

    def request_finished(self, sequences: Sequence[int]) -> None:
        """Take note of sequences that have ended, in whatever way. Blocks that are still read or
        written must have been pinned while the sequences were live."""
        return

    def blocks_evicted(self, evicted: EvictedBlocks) -> None:
        """Save blocks, or not, before the next step overwrites them: copies must be enqueued when
        this returns. At most once a step."""
        return

    # -- steps -----------------------------------------------------------------------------------

    def begin_step(self) -> Sequence[EngineOutput]:
        """Handle what has arrived since the last step. Returns messages to clients."""
        return ()

    def end_step(self, outputs: Sequence[EngineOutput]) -> Sequence[EngineOutput]:
        """Handle the outputs of a step. Returns additional messages to clients."""
        return ()

    @property
    def has_work(self) -> bool:
        """Whether a transfer has not ended."""
        return False

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors that become readable when `begin_step` has something to do."""
        return ()

    @property
    def timeout_ms(self) -> int | None:
        """Milliseconds after which `begin_step` must be called; None: no timeout."""
        return None

    def add_stats(self, stats: EngineStats) -> EngineStats:
        """Return the engine's metrics with those of transfers; thread-safe."""
        return stats

    def close(self) -> None:
        """End connections and threads; a process just ends."""
        return


def matched_tokens(connector: KvConnector) -> Callable[[int, int], int]:
    """Return `get_num_new_matched_tokens` for the scheduler, which must not keep the connector
    alive. A connector that raises matches nothing."""
    reference = ref(connector)

    def matched(sequence: int, num_computed_tokens: int) -> int:
        connector = reference()
        if connector is None:
            return 0
        try:
            return connector.get_num_new_matched_tokens(sequence, num_computed_tokens)
        except Exception:
            _logger.exception("the KV connector failed; a prompt is computed")
            return 0

    return matched

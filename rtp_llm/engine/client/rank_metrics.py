# SPDX-License-Identifier: Apache-2.0
"""Metrics of several ranks as those of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from rtp_llm.engine.messages import EngineReady, EngineStats

_SUMMED_READY = ("num_blocks", "max_running", "max_queued", "weight_bytes", "kv_cache_bytes")
# A step is one of all ranks, and the slowest says how long it takes.
_LARGEST_STATS = (
    "steps",
    "step_seconds",
    "step_age",
    "kv_used_ratio",
    "spec_decode_num_speculative_tokens",
)
# Only workers for one part of requests have them, and those have one rank.
_OF_ONE = ("transfers", "transfer_failures")
_BY_PLACE = "spec_decode_accepted_per_pos"


def all_ready(ranks: Sequence[EngineReady]) -> EngineReady:
    """What they hold together; what a request must fit into is what the smallest takes."""
    if len(ranks) == 1:
        return ranks[0]
    summed = {name: sum(getattr(rank, name) for rank in ranks) for name in _SUMMED_READY}
    return msgspec.structs.replace(
        ranks[0],
        **summed,
        max_model_len=min(rank.max_model_len for rank in ranks),
        start_seconds=max(rank.start_seconds for rank in ranks),
    )


def all_stats(ranks: Sequence[EngineStats]) -> EngineStats:
    """Sums, but for times and shares: those of the rank where they are largest."""
    if len(ranks) <= 1:
        return ranks[0] if ranks else EngineStats()
    return EngineStats(
        **{
            name: (max if name in _LARGEST_STATS else sum)(getattr(rank, name) for rank in ranks)
            for name in EngineStats.__struct_fields__
            if name not in (*_OF_ONE, _BY_PLACE)
        },
        spec_decode_accepted_per_pos=_sums([rank.spec_decode_accepted_per_pos for rank in ranks]),
    )


def _sums(columns: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Entry by entry; they may be of different lengths."""
    return tuple(map(sum, zip_longest(*columns, fillvalue=0)))

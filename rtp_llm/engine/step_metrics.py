# SPDX-License-Identifier: Apache-2.0
"""Counters of the engine, readable from another thread while a step runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.engine.messages import FINISH_BANNED, FINISH_NAN, EngineStats

if TYPE_CHECKING:
    from rtp_llm._runtime import Result, Scheduler
    from rtp_llm.worker.heads.sample_handle import Sampled

# Querying the scheduler in every step would cost more than the metrics are worth.
_REFRESH_SECONDS = 0.05


class StepMetrics:
    """Written by the engine's thread; ``read`` gives any thread the latest complete set."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.prompt_tokens = 0
        self._scheduler = scheduler
        self._steps = 0
        self._generated = 0
        self.broken = 0
        self._drafts = self._draft_tokens = self._draft_length = 0
        self._accepted = np.zeros(0, np.int64)  # drafts, by their place
        self._batch_size = 0
        self._step_seconds = 0.0
        self._began: float | None = None
        self._refreshed = 0.0
        self._latest = EngineStats()
        self.refresh()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Around one step."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._step_seconds = now - self._began
            self._began = None
        self._steps += 1
        if now - self._refreshed > _REFRESH_SECONDS:
            self.refresh()

    def elapsed(self) -> float:
        """Seconds since the present step began, 0 between steps."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def count(self, sampled: Sampled | None, result: Result, draft_length: int) -> None:
        """Add a step that drew ``sampled`` and committed ``result``; ``draft_length``: the present
        limit of drafts per sequence."""
        self._draft_length = draft_length
        num_tokens = result.num_tokens
        self._batch_size = int(np.count_nonzero(num_tokens))
        self._generated += int(num_tokens.sum())
        if sampled and sampled.broken:  # those of dead rows do not count
            self.broken += int(np.isin(result.finish, (FINISH_NAN, FINISH_BANNED)).sum())
        if sampled and sampled.accepted is not None:
            self._count_drafts(result)

    def _count_drafts(self, result: Result) -> None:
        num_drafts = result.num_drafts
        self._drafts += int(np.count_nonzero(num_drafts))
        self._draft_tokens += int(num_drafts.sum())
        accepted = np.minimum(np.maximum(result.num_tokens - 1, 0), num_drafts)
        # Those with a draft accepted at a place have all before it accepted, too.
        lengths = np.bincount(accepted, minlength=len(self._accepted) + 1)
        counts = lengths[::-1].cumsum()[::-1][1:]
        counts[: len(self._accepted)] += self._accepted
        self._accepted = counts

    def refresh(self) -> None:
        """Take a new set; the engine's thread only."""
        self._refreshed = time.monotonic()
        state = self._scheduler.stats()
        total = state["total_blocks"]
        self._latest = EngineStats(
            running=state["running"],
            waiting=state["waiting"],
            receiving=state["receiving"],
            held=state["held"],
            free_blocks=state["free_blocks"],
            total_blocks=total,
            cached_blocks=state["cached_blocks"],
            kv_used_ratio=1.0 - state["free_blocks"] / total if total else 0.0,
            preemptions=state["preemptions"],
            prefix_hit_tokens=state["prefix_hit_tokens"],
            prefix_query_tokens=state["prefix_query_tokens"],
            steps=self._steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self._generated,
            degenerate_rows=self.broken,
            spec_decode_num_speculative_tokens=self._draft_length,
            spec_decode_num_drafts=self._drafts,
            spec_decode_num_draft_tokens=self._draft_tokens,
            spec_decode_num_accepted_tokens=int(self._accepted.sum()),
            spec_decode_accepted_per_pos=tuple(self._accepted.tolist()),
            batch_size=self._batch_size,
            step_seconds=self._step_seconds,
        )

    def read(self) -> EngineStats:
        """The latest set, with the age of the step that is running."""
        latest, age = self._latest, self.elapsed()
        return msgspec.structs.replace(latest, step_age=age)

"""A step whose numbers are on the device: what drafts, and the model's layers, read the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch
    from rtp_llm.worker.graphs.step_graphs import Captured
    from rtp_llm.worker.plan import StepPlan


@dataclass(frozen=True)
class DeviceStep:
    """``plan`` between `ModelRunner.begin` and the next one.

    ``captured``: the graph that computes it, on numbers that were written already; None: it runs
    eagerly. ``writing``: around its layers, which are told of as StepWriter says.
    """

    plan: StepPlan
    make_batch: Callable[[], ForwardBatch]
    captured: Captured | None = None
    writing: AbstractContextManager[Callable[[int], None]] | None = None

    @cached_property
    def batch(self) -> ForwardBatch:
        """Its tokens and sequences, without padding. `token_ids` names none once its layers ran."""
        return self.make_batch()

# SPDX-License-Identifier: Apache-2.0
"""The worker side of a KV connector; rtp_llm/engine/kv_connector.py is the scheduler side."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtp_llm.worker.layer_hooks import LayerHooks
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.speculative.device_drafter import DeviceDrafter


class WorkerConnector:
    """A connector's work on one rank of a model. Only the thread that steps calls it.

    All ranks receive the same messages from the scheduler side, at the same place among their
    steps. Each reports on its own; see RankGroup.
    """

    @property
    def poll_seconds(self) -> float | None:
        """How soon `get_finished` must be called again; None: nothing is in progress."""
        return None

    def handle_message(self, message: Any) -> None:
        """Do what the scheduler side asks, such as to start a load."""
        raise NotImplementedError

    def get_finished(self) -> Iterable[Any]:
        """Return messages to the scheduler side about what has ended since the last call."""
        return ()

    def begin_step(self, plan: StepPlan) -> AbstractContextManager[LayerHooks] | None:
        """Begin a step; None if no layer of it waits for a load or is saved.

        Otherwise a context in which the step's layers run, and again the layers of the drafter. An
        exception that leaves the context is not replaced. Such a step is not replayed as a graph.
        """
        return None

    def save_draft_states(self, plan: StepPlan, drafter: DeviceDrafter) -> None:
        """Save what drafts continue from, once the drafter has taken in a step with hooks."""
        return

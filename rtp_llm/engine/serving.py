# SPDX-License-Identifier: Apache-2.0
"""What the engine process's loop serves: an engine, or one with transfers around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rtp_llm.engine.messages import AddRequest, EngineReady, EngineStats, FromEngine


class Serving(Protocol):
    """Takes requests, steps, says what the steps produced."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Become readable when ``step`` has something to do although no message came."""
        return ()

    @property
    def patience(self) -> int | None:
        """Milliseconds after which ``step`` is called in any case; None: whenever it may be."""
        return None

    @property
    def has_work(self) -> bool:
        """Some sequence is waiting or running, or outputs of a step are still to come."""

    @property
    def can_go_on(self) -> bool:
        """``step`` has something to do now."""
        return self.has_work

    @property
    def has_idle_work(self) -> bool:
        """There is something for ``work_idle`` to do when no sequence is there."""

    def work_idle(self) -> None:
        """Do a part of it, as long as a request may wait for."""

    def add(self, request: AddRequest) -> object:
        """Queue a request. Raises RequestError."""

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences, (request_id, index) each."""

    def step(self) -> Sequence[FromEngine]:
        """Finish one step; what it produced."""

    def stats(self) -> EngineStats:
        """The latest metrics; any thread."""


class StepGroup(Protocol):
    """Engines whose workers step together: each must hear of all requests, and that one leaves."""

    @property
    def stopped(self) -> bool:
        """Another one has left, so this one must leave, too."""

    def wake(self, number: int) -> None:
        """Request ``number`` was read, by this engine or by another one."""

    def leave(self) -> None:
        """Step no more; the others are told."""


class Built(Protocol):
    """What is served, and the numbers of what was built."""

    @property
    def engine(self) -> Serving:
        """It is ready to step."""

    @property
    def ready(self) -> EngineReady:
        """What the client is told."""

    @property
    def step_group(self) -> StepGroup | None:
        """None: the engine steps alone."""
        return None

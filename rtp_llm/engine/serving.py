# SPDX-License-Identifier: Apache-2.0
"""What the engine process's loop serves: an engine, or one with transfers around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rtp_llm.engine.messages import AddRequest, EngineReady, EngineStats, FromEngine

if TYPE_CHECKING:
    from rtp_llm.engine.profiler import Profiler


class Serving(Protocol):
    """Takes requests, executes steps and returns what they produced."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors that become readable when ``step`` has work without a message."""
        return ()

    @property
    def timeout_ms(self) -> int | None:
        """Milliseconds after which ``step`` must be called; None: no timeout."""
        return None

    @property
    def has_work(self) -> bool:
        """Whether a sequence is waiting or running, or outputs of a step are still to come."""

    @property
    def can_go_on(self) -> bool:
        """Whether ``step`` has something to do now."""
        return self.has_work

    @property
    def has_idle_work(self) -> bool:
        """Whether ``work_idle`` has something to do while there are no sequences."""

    def work_idle(self) -> None:
        """Do a part of the idle work, short enough for a request to wait for."""

    def add(self, request: AddRequest) -> object:
        """Queue a request. Raises RequestError."""

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences, (request_id, index) each."""

    def step(self) -> Sequence[FromEngine]:
        """Finish one step; returns what it produced."""

    def stats(self) -> EngineStats:
        """The latest metrics; thread-safe."""


class StepGroup(Protocol):
    """Engines that step together: each is notified of all requests, and when one leaves."""

    @property
    def stopped(self) -> bool:
        """Whether another engine has left, so that this one must leave too."""

    def wake(self, number: int) -> None:
        """Report that this engine or another one has read request ``number``."""

    def leave(self) -> None:
        """Stop stepping, and notify the others."""


class Built(Protocol):
    """The engine to serve, and the facts about it."""

    @property
    def engine(self) -> Serving:
        """The engine, ready to step."""

    @property
    def ready(self) -> EngineReady:
        """The message to the client."""

    @property
    def step_group(self) -> StepGroup | None:
        """The group of engines that step together; None if the engine steps alone."""
        return None

    @property
    def profiler(self) -> Profiler | None:
        """The profiler of this process; None without profiler_dir."""
        return None

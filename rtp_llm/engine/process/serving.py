"""What the engine process's loop serves: an engine, or one with transfers around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rtp_llm.engine.messages import AddRequest, EngineReady, EngineStats, FromEngine

if TYPE_CHECKING:
    from rtp_llm.engine.replicas.rank_steps import RankSteps


class Serving(Protocol):
    """Takes requests, steps, says what the steps produced.

    Who inherits from it waits for nothing but requests.
    """

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
        """There is something to do for when no sequence is there."""

    def work_idle(self) -> None:
        """Do a part of it."""

    def add(self, request: AddRequest) -> object:
        """Queue a request. Raises RequestError."""

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences, (request_id, index) each."""

    def step(self) -> Sequence[FromEngine]:
        """Finish one step; what it produced."""

    @property
    def ranks(self) -> RankSteps | None:
        """How it steps together with other ranks; None: alone."""
        return None

    def stats(self) -> EngineStats:
        """The latest figures; any thread."""


class Built(Protocol):
    """What is served, and the figures of what was built."""

    @property
    def engine(self) -> Serving:
        """It is ready to step."""

    @property
    def ready(self) -> EngineReady:
        """The figures."""

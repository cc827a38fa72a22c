# SPDX-License-Identifier: Apache-2.0
"""What the server needs of an engine client; EngineClient and RanksClient fit it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import (
    AddRequest,
    EngineLog,
    EngineReady,
    EngineStats,
    OnStep,
    SequenceDelta,
)


class DeltaStream(Protocol):
    """The deltas of one request, as an async iterator; raises EngineDeadError, RequestError."""

    def __aiter__(self) -> DeltaStream:
        """Itself."""

    async def __anext__(self) -> SequenceDelta:
        """The next delta; cancelling this aborts the request."""

    async def aclose(self) -> None:
        """Stop reading; aborts the request unless it has ended."""


class RestartCounts(Protocol):
    """What was restarted so far."""

    @property
    def total(self) -> int:
        """Restarts of engine processes."""

    @property
    def replayed(self) -> int:
        """Requests that were computed again, from their beginning."""


class EngineInterface(Protocol):
    """One engine process or several, seen from the HTTP process."""

    on_step: OnStep | None
    on_log: Callable[[EngineLog], None] | None

    @property
    def alive(self) -> bool:
        """The model is loaded, the process runs and its heartbeat is young."""

    @property
    def failure(self) -> str | None:
        """Why the engine is dead and stays so, None while it is not."""

    @property
    def restarting(self) -> bool:
        """The engine is dead and is to be back."""

    @property
    def restarts(self) -> RestartCounts:
        """What was restarted so far."""

    @property
    def ranks_up(self) -> tuple[int, int]:
        """Engine processes that serve, and all of them."""

    def stop_restarting(self) -> None:
        """The next death of the engine is the last one."""

    @property
    def ready(self) -> EngineReady | None:
        """Figures of the loaded model; None before."""

    @property
    def latest_stats(self) -> EngineStats:
        """The last heartbeat."""

    def spawn(self, settings: Settings) -> None:
        """Start the process without waiting."""

    async def start(self, settings: Settings) -> EngineReady:
        """Wait until the engine is ready; raises EngineStartError."""

    def new_request_id(self) -> int:
        """An id that was not used before."""

    def generate(self, request: AddRequest) -> DeltaStream:
        """Send a request; raises EngineDeadError, RequestError when it is not even taken."""

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End a request, or one of its sequences."""

    async def close(self, timeout: float) -> None:
        """End the engine process."""

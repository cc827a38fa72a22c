# SPDX-License-Identifier: Apache-2.0
"""The engine client interface that the server uses; EngineClient implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import (
    ClientRequest,
    EngineLog,
    EngineReady,
    EngineStats,
    OnStep,
    SequenceDelta,
)
from rtp_llm.engine.profile_messages import Profiled


class DeltaStream(Protocol):
    """The deltas of one request, as an async iterator; raises EngineDeadError, RequestError."""

    def __aiter__(self) -> DeltaStream:
        """The iterator itself."""

    async def __anext__(self) -> SequenceDelta:
        """The next delta; cancelling the call aborts the request."""

    async def aclose(self) -> None:
        """Stop reading; aborts the request unless it has ended."""


class RestartCounts(Protocol):
    """What was restarted so far."""

    @property
    def total(self) -> int:
        """Restarts of engine processes."""

    @property
    def replayed(self) -> int:
        """Requests that were replayed from the beginning."""


class EngineInterface(Protocol):
    """One or several engine processes, as seen from the HTTP process."""

    on_step: OnStep | None
    on_log: Callable[[EngineLog], None] | None

    @property
    def alive(self) -> bool:
        """Whether the model is loaded, the process runs and its heartbeat is recent."""

    @property
    def failure(self) -> str | None:
        """Why the engine is permanently dead; None while it is not."""

    @property
    def restarting(self) -> bool:
        """Whether the engine is dead and being restarted."""

    @property
    def restarts(self) -> RestartCounts:
        """The restarts so far."""

    @property
    def ranks_up(self) -> tuple[int, int]:
        """The number of engine processes that are up, and of all engine processes."""

    def stop_restarting(self) -> None:
        """Do not restart the engine if it dies from now on."""

    @property
    def ready(self) -> EngineReady | None:
        """Facts about the loaded model; None until it is loaded."""

    @property
    def latest_stats(self) -> EngineStats:
        """The last heartbeat."""

    def spawn(self, settings: Settings) -> None:
        """Start the process without waiting."""

    async def start(self, settings: Settings) -> EngineReady:
        """Wait until the engine is ready; raises EngineStartError."""

    def new_request_id(self) -> int:
        """A new, unique request id."""

    def generate(self, request: ClientRequest) -> DeltaStream:
        """Send a request; raises EngineDeadError or RequestError if it is rejected at once."""

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Abort a request, or one of its sequences."""

    async def profile(self, *, start: bool) -> list[Profiled]:
        """Start or stop the profilers of all processes; raises ProfilerError, EngineDeadError."""

    async def close(self, timeout: float) -> None:
        """End the engine process."""

# SPDX-License-Identifier: Apache-2.0
"""The telemetry interface, and the record of a finished request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rtp_llm.server.generation.generation import Generation
from rtp_llm.server.generation.pooling import Pooling


@dataclass(frozen=True)
class FinishedRequest:
    """A generating request, answered or refused. ``generation``: None if it was refused."""

    path: str
    model: str
    status: int
    seconds: float
    request_id: str
    key_name: str
    headers: Mapping[bytes, bytes]
    generation: Generation | Pooling | None


class Telemetry(Protocol):
    """Receives finished requests and exports them in the background."""

    def record(self, request: FinishedRequest) -> None:
        """Record a finished request; takes some tens of microseconds and never blocks."""

    def close(self) -> None:
        """Export the remaining records, for at most a few seconds."""

# SPDX-License-Identifier: Apache-2.0
"""What telemetry is told of, and who takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rtp_llm.server.openai.generation import Generation


@dataclass(frozen=True)
class FinishedRequest:
    """One generating request, answered or refused. ``generation``: None where it was refused."""

    path: str
    model: str
    status: int
    seconds: float
    request_id: str
    key_name: str
    headers: Mapping[bytes, bytes]
    generation: Generation | None


class Telemetry(Protocol):
    """Takes what has ended, and exports it when it likes."""

    def record(self, request: FinishedRequest) -> None:
        """Costs some tens of microseconds; never waits."""

    def close(self) -> None:
        """Export what is left, for a few seconds at most."""

# SPDX-License-Identifier: Apache-2.0
"""The interface of an engine that is combined with transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtp_llm.engine.messages import AddRequest
from rtp_llm.engine.serving import Serving

if TYPE_CHECKING:
    from rtp_llm.engine.engine import Engine


class EngineWithTransfers(Serving):
    """What both roles have in common: everything except transfers is left to the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def can_go_on(self) -> bool:
        """Whether the engine has work now; transfers wake it through a descriptor."""
        return self._engine.can_go_on

    @property
    def has_idle_work(self) -> bool:
        return self._engine.has_idle_work

    def work_idle(self) -> None:
        self._engine.work_idle()

    def add(self, request: AddRequest) -> None:
        """Queue a request of the HTTP process. Raises RequestError."""
        self._engine.add(request)

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        self._engine.abort(sequences)

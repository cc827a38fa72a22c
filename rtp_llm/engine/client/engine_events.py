# SPDX-License-Identifier: Apache-2.0
"""Who listens to the processes of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rtp_llm.engine.messages import EngineLog, OnStep


@dataclass
class EngineEvents:
    """Listeners to the processes of an engine.

    ``on_step`` is called once for each step (see OnStep), ``on_log`` with each log line (without it
    they go to this process's log).
    """

    on_step: OnStep | None = None
    on_log: Callable[[EngineLog], None] | None = None

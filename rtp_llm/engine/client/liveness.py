# SPDX-License-Identifier: Apache-2.0
"""Whether an engine process lives, by what it says: its heart beats and no step of it hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rtp_llm.engine.client.step_watch import StepWatch
from rtp_llm.engine.messages import EngineStats

if TYPE_CHECKING:
    from rtp_llm.engine.messages import FromEngine

# Whoever asks hears after this that it is not well.
SILENCE_SECONDS = 1.5
# It is given up only after this: on a machine with more to do than cores it may just have to wait.
GONE_SECONDS = 10.0
# A reader looks more often than this; where it does not, it was held up itself.
_LOOK_SECONDS = 0.2


class Liveness:
    """Of one process, for a reader that calls `look` and then `receive` for each message that came.

    Time in which the reader did not look counts for nothing: heartbeats wait in its inbox then.
    """

    def __init__(self) -> None:
        self._step = StepWatch()
        self._received = self._looked = time.monotonic()

    def look(self, now: float) -> None:
        """The reader reads what has come."""
        late = max(0.0, now - self._looked - _LOOK_SECONDS)
        self._received = min(now, self._received + late)
        self._step.pause(late)
        self._looked = now

    def receive(self, message: FromEngine, now: float) -> None:
        """The process said something."""
        self._received = now
        if isinstance(message, EngineStats):
            self._step.take(message, now)

    def silent(self, now: float) -> bool:
        """It has not said anything for longer than it does, as far as the reader has looked."""
        return min(now, self._looked + _LOOK_SECONDS) - self._received > SILENCE_SECONDS

    def failure(self, now: float, step_timeout: float) -> str | None:
        """Why it counts as dead, None while it does not; a step may take `step_timeout` seconds."""
        if now - self._received > GONE_SECONDS:
            return f"the engine process gave no sign of life for {GONE_SECONDS:g} s"
        if self._step.age > step_timeout:
            return f"a step hangs: it has taken longer than {step_timeout=:.15g} s"
        return None

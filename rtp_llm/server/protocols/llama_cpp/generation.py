# SPDX-License-Identifier: Apache-2.0
"""An answer with a time limit, which ends at a line break."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rtp_llm.server.generation.generation import ChoiceDelta, Generation


class TimedGeneration(Generation):
    """Ends at the first line break later than `seconds` after the first delta; 0: no limit."""

    def __init__(self, *parts: Any, seconds: float) -> None:
        super().__init__(*parts)
        self._seconds = seconds

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """See Generation."""
        first: float | None = None
        async with aclosing(super().deltas()) as deltas:
            async for delta in deltas:
                yield delta
                now = time.perf_counter()
                first = now if first is None else first
                if self._seconds and now - first > self._seconds and "\n" in delta.text:
                    return

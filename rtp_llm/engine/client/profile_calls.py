# SPDX-License-Identifier: Apache-2.0
"""Waits for what the engine process answers about its profiler."""

from __future__ import annotations

import asyncio
from collections import deque

from rtp_llm.engine.client.engine_link import EngineLink
from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.engine.profile_messages import Profile, Profiled, ProfilerError


class ProfileCalls:
    """The open calls of one process, which answers in order. Belongs to an event loop."""

    def __init__(self) -> None:
        self._open: deque[asyncio.Future[Profiled]] = deque()

    async def call(self, link: EngineLink, *, start: bool) -> Profiled:
        """Raises ProfilerError with the reason of the process, EngineDeadError if it dies."""
        answer: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        link.send(Profile(start=start))
        self._open.append(answer)
        done = await answer
        if done.error:
            raise ProfilerError(done.error)
        return done

    def take(self, answer: Profiled) -> None:
        """The answer of the oldest call; after fail() there is none."""
        call = self._open.popleft() if self._open else None
        if call is not None and not call.done():  # its caller may have left
            call.set_result(answer)

    def fail(self, error: EngineDeadError) -> None:
        """No answer will come."""
        for call in self._open:
            if not call.done():
                call.set_exception(error)
        self._open.clear()

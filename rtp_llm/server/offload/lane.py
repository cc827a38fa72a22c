# SPDX-License-Identifier: Apache-2.0
"""Preparation processes for one kind of work, shared fairly among clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rtp_llm.server.offload.fair_slots import FairSlots
from rtp_llm.server.offload.process_link import PrepareLink, ProcessDiedError
from rtp_llm.server.offload.wire import Call, unpack
from rtp_llm.server.turn.body_kind import BodyKind, P

# A process may die through no fault of its request, but hardly twice in a row.
ATTEMPTS = 2

_log = logging.getLogger("rtp_llm.server")


class OverrunError(Exception):
    """A body exceeded its limit of time (`late`) or memory; the text says which."""

    def __init__(self, what: str, *, late: bool = False) -> None:
        super().__init__(what)
        self.late = late


class Lane:
    """Up to `size` processes, forked on demand; each handles one body at a time."""

    def __init__(self, size: int, fork: Callable[[], Awaitable[PrepareLink]]) -> None:
        self._slots = FairSlots(size)
        self._fork = fork
        self._idle: list[PrepareLink] = []
        self._busy: set[PrepareLink] = set()

    @property
    def pids(self) -> list[int]:
        """The pids of the running processes."""
        return [link.pid for link in (*self._idle, *self._busy) if not link.ended]

    async def call(
        self, kind: BodyKind[P], call: Call, body: bytes, seconds: float, client: str
    ) -> P:
        """Prepare a body of `kind` in one of the processes, within `seconds` from its start there.

        Raises ApiError (the body's own; 503 if the queue is full or no process can be started) or
        OverrunError.
        """
        async with self._slots.slot(client, len(body)):
            reason = ""
            for _ in range(ATTEMPTS):
                link = await self._take()
                try:
                    async with asyncio.timeout(seconds):
                        head, tail = await self._exchange(link, call, body)
                except TimeoutError:
                    raise OverrunError(f"more than {seconds:g} s", late=True) from None
                except ProcessDiedError as error:
                    reason = str(error)
                    _log.warning("%s while it prepared a body of %d bytes", reason, len(body))
                    if error.out_of_memory:
                        text = f"more than {call.memory_bytes >> 20} MiB of memory"
                        raise OverrunError(text) from error
                else:
                    return unpack(kind, head, tail)
        raise OverrunError(f"more than this server has: {reason}, {ATTEMPTS} times")

    async def _exchange(self, link: PrepareLink, call: Call, body: bytes) -> tuple[bytes, bytes]:
        try:
            answer = await link.call(call, body)
        except BaseException:
            # Its answer would be mistaken for that of the next call.
            self._busy.discard(link)
            link.kill()
            raise
        self._busy.discard(link)
        self._idle.append(link)
        return answer

    async def _take(self) -> PrepareLink:
        while self._idle:
            link = self._idle.pop()
            if not link.ended:
                break
            link.kill()
        else:
            link = await self._fork()
        self._busy.add(link)
        return link

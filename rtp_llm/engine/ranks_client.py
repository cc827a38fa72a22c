"""Several engine processes as one: each request goes to the rank that has least to do.

Imports no torch, as the client of one process.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.distributed.membership import Membership
from rtp_llm.engine.client import EngineClient, log_line
from rtp_llm.engine.messages import (
    AddRequest,
    EngineDeadError,
    EngineLog,
    EngineReady,
    EngineStartError,
    EngineStats,
)
from rtp_llm.engine.rank_figures import all_ready, all_stats

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.stream import TokenStream

# What the ranks that survive say of the one that did not; its own words are the reason.
_SURVIVOR = "lost contact to another rank"
_LAST_WORDS_SECONDS = 0.5
# In so many steps, counted: where this process had to wait for a core, a dying one had to as well,
# and no time would be left for it.
LOOKS, LOOK_SECONDS = 50, 0.01


class RanksClient:
    """The face of an EngineClient over `size` of them, which live and die together."""

    def __init__(self, size: int, module: str = "rtp_llm.engine.process") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rtp-llm-ranks-"))
        meet = str(self._folder / "meet")
        self._clients = [EngineClient(module, Membership(r, size, meet)) for r in range(size)]
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._failure: str | None = None
        self._serving = False
        for rank, client in enumerate(self._clients):
            client.on_death = self._died
            client.on_log = self._log_of(rank)
        self.ready: EngineReady | None = None
        self.on_log: Callable[[EngineLog], None] | None = None

    @property
    def on_step(self) -> Callable[[int], None] | None:
        """Called once for each step of each rank with the number of sequences in it."""
        return self._clients[0].on_step

    @on_step.setter
    def on_step(self, call: Callable[[int], None] | None) -> None:
        for client in self._clients:
            client.on_step = call

    # -- life ----------------------------------------------------------------------------------

    def spawn(self, settings: Settings) -> None:
        """Start the processes without waiting; none is left when one cannot be started."""
        try:
            for client in self._clients:
                client.spawn(settings)
        except BaseException:
            for client in self._clients:
                client.abandon()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    async def start(self, settings: Settings) -> EngineReady:
        """Wait until all ranks serve.

        Raises:
            EngineStartError: a rank cannot; the others are ended.
        """
        self.spawn(settings)
        tasks = [asyncio.create_task(client.start(settings)) for client in self._clients]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.exception() for task in done):
            # One that was only left alone by another says so; that other one is heard, too.
            await asyncio.wait(tasks, timeout=_LAST_WORDS_SECONDS)
            reason = reason_of([_failure_of(task) for task in tasks])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close(0.0)
            raise EngineStartError(reason)
        self.ready = all_ready([task.result() for task in tasks])
        self._serving = True
        return self.ready

    @property
    def alive(self) -> bool:
        """All ranks serve, and every heartbeat is young; a silent one may only have to wait."""
        return (
            self._serving
            and self._failure is None
            and all(client.alive for client in self._clients)
        )

    @property
    def failure(self) -> str | None:
        """Why the engine is dead, None while it is not."""
        return self._failure

    @property
    def latest_stats(self) -> EngineStats:
        """The ranks' figures together."""
        return all_stats([client.latest_stats for client in self._clients])

    async def close(self, timeout: float = 5.0) -> None:
        """End all processes, by force after ``timeout`` seconds; open streams get an error."""
        self._serving = False
        for client in self._clients:
            client.on_death = None
        await asyncio.gather(*(client.close(timeout) for client in self._clients))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _died(self) -> None:
        """One rank is dead: no other can go on."""
        if self._failure is not None or self.ready is None:
            return
        self._failure = "..."  # the others' deaths, which this causes, are no news
        self._failure = reason_of(self._last_words())
        for client in self._clients:
            client.give_up(self._failure)

    def _last_words(self) -> list[str | None]:
        """What each rank died of. One that was killed may be found dead only after its survivors,
        who see its connections end, have told of it: it is waited for, briefly."""
        words: list[str | None] = []
        for _ in range(LOOKS):
            words = [client.last_words() for client in self._clients]
            if any(text and _SURVIVOR not in text for text in words):
                break
            time.sleep(LOOK_SECONDS)
        return words

    def _log_of(self, rank: int) -> Callable[[EngineLog], None]:
        def log(line: EngineLog) -> None:
            named = EngineLog(level=line.level, message=f"rank {rank}: {line.message}")
            (self.on_log or log_line)(named)

        return log

    # -- requests ------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        """A number that no request of this client had."""
        return next(self._ids)

    def generate(self, request: AddRequest) -> TokenStream:
        """Send the request to the rank with fewest open sequences, the first among equals.

        Raises:
            EngineDeadError: a rank is not alive.
            RequestError: all ranks have as many sequences as they take.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        number = next(self._numbers)
        chosen = min(self._clients, key=lambda client: client.num_sequences)
        stream = chosen.generate(msgspec.structs.replace(request, number=number))
        for client in self._clients:
            if client is not chosen:
                client.wake(number)
        return stream

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        for client in self._clients:  # those that do not have it do nothing
            client.abort(request_id, index)


def _failure_of(task: asyncio.Task[EngineReady]) -> str | None:
    error = task.exception() if task.done() and not task.cancelled() else None
    return None if error is None else str(error)


def reason_of(failures: Sequence[str | None]) -> str:
    """The failure that caused the others, with its rank."""
    said = [(rank, text) for rank, text in enumerate(failures) if text]
    rank, text = min(said, key=lambda each: _SURVIVOR in each[1])
    return f"rank {rank}: {text}"

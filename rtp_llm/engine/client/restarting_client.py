# SPDX-License-Identifier: Apache-2.0
"""An engine whose process is started again when it dies.

Imports no torch, as the clients that it takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rtp_llm.engine.messages import (
    AddRequest,
    EngineDeadError,
    EngineLog,
    EngineReady,
    EngineStats,
    OnStep,
)

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.client.stream import TokenStream

WINDOW_SECONDS = 600.0
# Before the second restart, and the most before a later one; each waits twice as long as the last.
# The first comes at once.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 30.0
# How long an engine serves before its successor's process is started: a start is busy enough.
SPARE_SECONDS = 5.0

_logger = logging.getLogger("rtp_llm.engine")


class Restarts:
    """How often the processes of an engine were and may be restarted; all of them share it."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: restarts within WINDOW_SECONDS."""
        self.limit = limit
        self.total = 0
        """Restarts so far."""
        self.replayed = 0
        """Requests that were computed again."""
        self._clock = clock
        self._stopped = False
        self._recent: list[float] = []

    @property
    def allowed(self) -> bool:
        """One more may be taken."""
        earliest = self._clock() - WINDOW_SECONDS
        self._recent = [each for each in self._recent if each > earliest]
        return not self._stopped and len(self._recent) < self.limit

    def stop(self) -> None:
        """Allow no more."""
        self._stopped = True

    def take(self) -> tuple[int, float]:
        """Count a restart: its number within the window, and the seconds to wait before it."""
        self._recent.append(self._clock())
        self.total += 1
        number = len(self._recent)
        if number == 1:
            return number, 0.0
        doubled = FIRST_DELAY_SECONDS * 2 ** min(number - 2, 30)
        return number, min(LONGEST_DELAY_SECONDS, doubled)


class Client(Protocol):
    """One life of an engine: EngineClient, or RanksClient for several processes."""

    on_step: OnStep | None
    on_log: Callable[[EngineLog], None] | None
    on_death: Callable[[], None] | None
    on_orphan: Callable[[TokenStream], bool] | None

    @property
    def ready(self) -> EngineReady | None: ...
    @property
    def latest_stats(self) -> EngineStats: ...
    @property
    def alive(self) -> bool: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def ended(self) -> str | None: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def ranks_up(self) -> tuple[int, int]: ...
    @property
    def restarts_ranks(self) -> bool: ...
    @property
    def restarting(self) -> bool: ...
    def successor(self) -> Client: ...
    def keep_spare(self) -> None: ...
    def drop_spare(self) -> None: ...
    def spawn(self, settings: Settings) -> None: ...
    async def start(self, settings: Settings) -> EngineReady: ...
    async def reap(self) -> bool: ...
    async def close(self, timeout: float) -> None: ...
    def give_up(self, reason: str) -> None: ...
    def generate(self, request: AddRequest) -> TokenStream: ...
    def replay(self, stream: TokenStream, request: AddRequest) -> None: ...
    def abort(self, request_id: int, index: int | None = None) -> None: ...


class RestartingClient:
    """A client and, when its engine dies, its successors. The first start is tried once only.

    Requests that had no output when the engine died wait for the next one, which computes them from
    their beginning; those that it dies of, too, and those that had output, fail. ``on_death`` is
    called when there is no further restart. Belongs to one event loop, as the clients.
    """

    def __init__(self, client: Client, restarts: Restarts, *, spare: bool = False) -> None:
        """``spare``: the successor's process is started while the engine lives."""
        self._spare = spare and restarts.limit > 0
        self._spare_timer: asyncio.TimerHandle | None = None
        self.restarts = restarts
        self.on_death: Callable[[], None] | None = None
        self._client = client
        self._ready: EngineReady | None = None
        self._settings: Settings | None = None
        self._failure: str | None = None
        self._may_restart = True  # without regard to how many restarts are left
        self._restart: asyncio.Task[None] | None = None
        self._orphans: list[weakref.ref[TokenStream]] = []
        self._numbers = itertools.count(1)

    # -- what it has of its client ---------------------------------------------------------------

    @property
    def on_step(self) -> OnStep | None:
        """Called once for each step with the number of sequences in it."""
        return self._client.on_step

    @on_step.setter
    def on_step(self, call: OnStep | None) -> None:
        self._client.on_step = call

    @property
    def on_log(self) -> Callable[[EngineLog], None] | None:
        """Called with each log line of the engine."""
        return self._client.on_log

    @on_log.setter
    def on_log(self, call: Callable[[EngineLog], None] | None) -> None:
        self._client.on_log = call

    @property
    def ready(self) -> EngineReady | None:
        """What the engine said when it was ready, the last one that was."""
        return self._ready

    @property
    def latest_stats(self) -> EngineStats:
        """The last heartbeat; counters begin anew with each process."""
        return EngineStats() if self._restart else self._client.latest_stats

    @property
    def alive(self) -> bool:
        """It serves and its heartbeat is young."""
        return self._restart is None and self._failure is None and self._client.alive

    @property
    def restarting(self) -> bool:
        """It is dead and is to be back."""
        return self._is_back_soon or (self._failure is None and self._client.restarting)

    @property
    def ranks_up(self) -> tuple[int, int]:
        """Processes that serve, and all of them."""
        up, size = self._client.ranks_up
        return (up if self.alive else 0), size

    @property
    def failure(self) -> str | None:
        """Why the engine is dead and stays so, None while it is not."""
        if self._failure is not None or self._restart is not None or self._can_restart:
            return self._failure
        return self._client.ended

    @property
    def num_sequences(self) -> int:
        """Sequences of open requests."""
        return self._client.num_sequences

    # -- life ------------------------------------------------------------------------------------

    def spawn(self, settings: Settings) -> None:
        """Start the process without waiting."""
        self._client.spawn(settings)

    async def start(self, settings: Settings) -> EngineReady:
        """Wait until the engine is ready; raises EngineStartError."""
        ready = await self._client.start(settings)
        self.take_over(settings, ready)
        return ready

    def take_over(self, settings: Settings, ready: EngineReady) -> None:
        """From now on it is restarted when it dies; `settings` are those that it was started with.

        Decode workers know a prefill worker by its address, which may have been a free one.
        """
        if ready.prefill_address:
            settings = dataclasses.replace(settings, prefill_address=ready.prefill_address)
        self._settings, self._ready = settings, ready
        self._client.on_death = self._died
        if self._spare:
            loop = asyncio.get_running_loop()
            self._spare_timer = loop.call_later(SPARE_SECONDS, self._keep_spare)
        if self._client.restarts_ranks:
            self._may_restart = False
        else:
            self._client.on_orphan = self._keep

    def stop_restarting(self) -> None:
        """The next death is the last one; a restart that is under way goes on."""
        self.restarts.stop()

    def give_up(self, reason: str) -> None:
        """Count the engine as dead for good, unless it is."""
        self._may_restart = False
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
            self._end(reason)
        elif self._failure is None:
            self._client.give_up(reason)

    async def close(self, timeout: float = 5.0) -> None:
        """End the engine, by force after ``timeout`` seconds; open streams get an error."""
        self._may_restart = False
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait({self._restart})
        self._client.on_death = self._client.on_orphan = None
        self._drop_spare()
        await self._client.close(timeout)
        self._fail_orphans("the engine was shut down")

    # -- restart ---------------------------------------------------------------------------------

    @property
    def _is_back_soon(self) -> bool:
        """Also before the end of its process was noticed."""
        if self._restart is not None or self._failure is not None:
            return self._restart is not None
        return self._client.ended is not None and self._can_restart

    @property
    def _can_restart(self) -> bool:
        return self._may_restart and self.restarts.allowed

    def _died(self) -> None:
        reason = self._client.failure or "it is gone"
        if self._can_restart:
            self._restart = asyncio.get_running_loop().create_task(self._bring_back(reason))
        else:
            self._end(reason)

    def _keep_spare(self) -> None:
        if self._can_restart:
            self._client.keep_spare()

    def _drop_spare(self) -> None:
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        self._client.drop_spare()

    def _end(self, reason: str) -> None:
        self._failure = reason
        self._drop_spare()
        self._fail_orphans(reason)
        if self.on_death:
            self.on_death()

    async def _bring_back(self, reason: str) -> None:
        """Restart until an engine serves or no restart is left."""
        died, failure = time.monotonic(), reason
        while self._can_restart:
            number, delay = self.restarts.take()
            _logger.error(
                "%s; restart %d of at most %d in %g minutes, in %g s: %d requests wait for it",
                failure,
                number,
                self.restarts.limit,
                WINDOW_SECONDS / 60,
                delay,
                len(self._orphans),
            )
            if not await self._client.reap():
                failure += "; its process cannot be ended and may still hold the device"
                break
            await self._client.close(0.0)
            await asyncio.sleep(delay)
            problem = await self._start_next()
            if problem is None:
                self._resume(time.monotonic() - died)
                return
            failure = problem
        self._restart = None
        self._end(failure)

    async def _start_next(self) -> str | None:
        """Why the successor is not there; None when it serves."""
        assert self._settings is not None
        old, new = self._client, self._client.successor()
        new.on_step, new.on_log = old.on_step, old.on_log
        old.on_death = old.on_orphan = None
        self._client = new
        try:
            ready = await new.start(self._settings)
        except Exception as error:  # whatever it is, the next attempt may go well
            return str(error)
        self.take_over(self._settings, ready)
        return new.failure

    def _resume(self, seconds: float) -> None:
        self._restart = None
        streams = [stream for each in self._orphans if (stream := each())]
        self._orphans.clear()
        waiting = [stream for stream in streams if not stream.finished]
        _logger.warning(
            "the engine is back after %.1f s; %d requests start again", seconds, len(waiting)
        )
        for stream in waiting:
            if stream.request is not None:
                self.restarts.replayed += 1
                self._client.replay(stream, stream.request)

    # -- streams of a dead engine ------------------------------------------------------------------

    def _keep(self, stream: TokenStream) -> bool:
        """Whether a stream whose engine died waits for the next one."""
        answered = stream.request is None or stream.finished
        if answered or stream.replayed or not self._can_restart:
            return False
        self._orphans.append(weakref.ref(stream))
        return True

    def _fail_orphans(self, reason: str) -> None:
        orphans, self._orphans = self._orphans, []
        for each in orphans:
            stream = each()
            if stream is not None and not stream.finished:
                stream.fail(EngineDeadError(reason))

    # -- requests --------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        """A number that no request had, of none of the processes."""
        return next(self._numbers)

    def generate(self, request: AddRequest) -> TokenStream:
        """See EngineClient; raises EngineDeadError while the engine is being restarted, too."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if self._is_back_soon:
            raise EngineDeadError("it is being restarted")
        return self._client.generate(request)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        for each in self._orphans:
            stream = each()
            if stream is not None and stream.request_id == request_id:
                stream.abort(index)
        self._client.abort(request_id, index)

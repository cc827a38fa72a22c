# SPDX-License-Identifier: Apache-2.0
"""Processes that live and die together, and are restarted together.

Imports no torch, as the clients of its processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.engine.client.rank_failures import LOOK_SECONDS, LOOKS, first_cause, names_cause
from rtp_llm.engine.client.restarts import WINDOW_SECONDS, Restarts
from rtp_llm.engine.messages import (
    ClientRequest,
    EngineDeadError,
    EngineReady,
    EngineStartError,
    EngineStats,
)

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership
    from rtp_llm.engine.client.meeting_folder import MeetingFolder
    from rtp_llm.engine.client.process_client import ProcessClient
    from rtp_llm.engine.client.stream import TokenStream

# How long an engine serves before its successor's process is started: a start is busy enough.
SPARE_SECONDS = 5.0
_START_REPORT_SECONDS = 0.5

_logger = logging.getLogger("rtp_llm.engine")


async def start_together(
    processes: Sequence[ProcessClient], settings: Settings
) -> list[EngineReady]:
    """Wait until all processes serve.

    Raises:
        EngineStartError: one cannot; the others are ended.
    """
    if len(processes) == 1:
        return [await processes[0].start(settings)]
    tasks = [asyncio.create_task(process.start(settings)) for process in processes]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if not any(task.exception() for task in done):
            return [task.result() for task in tasks]
        # The first to report may have failed because of another one, which gets time to report.
        await asyncio.wait(tasks, timeout=_START_REPORT_SECONDS)
        raise EngineStartError(first_cause([_failure_of(task) for task in tasks]))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(process.close(0.0) for process in processes))
        raise


def _failure_of(task: asyncio.Task[EngineReady]) -> str | None:
    error = task.exception() if task.done() and not task.cancelled() else None
    return None if error is None else str(error)


class RankGroup:
    """One process, or several ranks, and when one of them dies, their successors.

    Requests that had no output when the group died wait for its successors, which compute them from
    the beginning. A request that two lives of the group die of fails, as do those that had output.
    `on_ready` is called after each restart, `on_death` when no restart is left. Belongs to one
    event loop.
    """

    def __init__(
        self,
        processes: Sequence[ProcessClient],
        restarts: Restarts,
        meeting: MeetingFolder | None = None,
        *,
        spare: bool = False,
    ) -> None:
        """The processes have started. `meeting`: the group is all of its ranks; `spare`: start the
        successor's process, of a group of one, while this one serves."""
        self.processes = processes
        self._restarts, self._meeting = restarts, meeting
        self._spare = spare and restarts.limit > 0
        self._spare_timer: asyncio.TimerHandle | None = None
        self.on_ready: Callable[[], None] | None = None
        self.on_death: Callable[[], None] | None = None
        self.readies: Sequence[EngineReady] = ()
        """What each process reported when it was ready, the last time."""
        self._settings: Settings | None = None
        self._failure: str | None = None
        self._may_restart = True  # regardless of how many restarts are left
        self._inquest: asyncio.Task[None] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._orphans: list[weakref.ref[TokenStream]] = []
        self._numbers = itertools.count(1)

    def serve(self, settings: Settings, readies: Sequence[EngineReady]) -> None:
        """From now on, restart the processes when one dies; `settings`: those of the start.

        Decode workers know a prefill worker by its address, which may have been a free one.
        """
        if readies[0].prefill_address:
            settings = dataclasses.replace(settings, prefill_address=readies[0].prefill_address)
        self._settings, self.readies = settings, readies
        for process in self.processes:
            process.on_death, process.on_orphan = self._process_died, self._keep
        if self._spare:
            loop = asyncio.get_running_loop()
            self._spare_timer = loop.call_later(SPARE_SECONDS, self._keep_spare)
        if any(process.failure for process in self.processes):  # it died meanwhile
            self._process_died()

    # -- state -----------------------------------------------------------------------------------

    @property
    def _lockstep(self) -> bool:
        return self.readies[0].lockstep

    @property
    def _ending(self) -> bool:
        return self._inquest is not None or self._restart is not None

    @property
    def alive(self) -> bool:
        """Whether requests are served: by all ranks in lockstep, or else by one of them."""
        enough = all if self._lockstep else any
        return (
            not self._ending
            and self._failure is None
            and enough(process.alive for process in self.processes)
        )

    @property
    def restarting(self) -> bool:
        """Whether it is dead and will be back; known before the end of its process is noticed."""
        if self._ending or self._failure is not None:
            return self._failure is None and (self._restart is not None or self._can_restart)
        return self._ended is not None and self._can_restart

    @property
    def failure(self) -> str | None:
        """Why the group is dead and stays so, None while it is not."""
        if self._failure is not None or self._ending or self._can_restart:
            return self._failure
        return self._ended

    @property
    def _ended(self) -> str | None:
        """How a single process ended, before that is noticed."""
        return self.processes[0].ended if len(self.processes) == 1 else None

    @property
    def ranks_up(self) -> int:
        """The number of processes that serve."""
        return sum(process.alive for process in self.processes) if self.alive else 0

    @property
    def num_sequences(self) -> int:
        """Sequences of open requests."""
        return sum(process.num_sequences for process in self.processes)

    @property
    def latest_stats(self) -> list[EngineStats]:
        """The last heartbeat of each process; counters begin anew with each process."""
        if self._restart is not None:
            return [EngineStats()] * len(self.processes)
        return [process.latest_stats for process in self.processes]

    # -- death and restart -----------------------------------------------------------------------

    @property
    def _can_restart(self) -> bool:
        return self._may_restart and self._restarts.allowed

    def _process_died(self) -> None:
        """One process is dead, and no other goes on; their deaths, which this causes, are no news.

        Of ranks in lockstep a survivor may report first: the others are asked, for a moment.
        """
        if self._ending or self._failure is not None:
            return
        if self._lockstep and len(self.processes) > 1:
            self._inquest = asyncio.get_running_loop().create_task(self._find_cause())
        else:
            self._die([process.failure for process in self.processes])

    async def _find_cause(self) -> None:
        failures: list[str | None] = []
        for _ in range(LOOKS):
            failures = [process.exit_report() for process in self.processes]
            if names_cause(failures):
                break
            await asyncio.sleep(LOOK_SECONDS)
        self._die(failures)

    def _die(self, failures: Sequence[str | None]) -> None:
        alone = len(self.processes) == 1
        reason = (failures[0] or "it is gone") if alone else first_cause(failures)
        for process in self.processes:
            process.on_death = None
            process.give_up(reason)
        self._inquest = None
        if self._can_restart:
            self._restart = asyncio.get_running_loop().create_task(self._bring_back(reason))
        else:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._failure = reason
        self._drop_spare()
        self._fail_orphans(reason)
        if self.on_death:
            self.on_death()

    async def _bring_back(self, reason: str) -> None:
        """Restart until all processes serve or no restart is left."""
        died, failure = time.monotonic(), reason
        while self._can_restart:
            number, delay = self._restarts.take()
            _logger.error(
                "%s; restart %d of at most %d in %g minutes, in %g s: %d requests wait for it",
                failure,
                number,
                self._restarts.limit,
                WINDOW_SECONDS / 60,
                delay,
                len(self._orphans),
            )
            if not all(await asyncio.gather(*(process.reap() for process in self.processes))):
                failure += "; its process cannot be ended and may still hold the device"
                break
            await self._close_processes(0.0)
            await asyncio.sleep(delay)
            problem = await self._start_next()
            if problem is None:
                self._resume(time.monotonic() - died)
                return
            failure = problem
        self._restart = None
        self._end(failure)

    async def _start_next(self) -> str | None:
        """Start the successors; returns why they do not serve, None if they do."""
        assert self._settings is not None
        memberships: list[Membership | None] = [None] * len(self.processes)
        if self._meeting is not None:
            self._meeting.renew()
            memberships = [self._meeting.membership(rank) for rank in range(len(memberships))]
        for process in self.processes:
            process.on_death = process.on_orphan = None
        self._numbers = itertools.count(1)
        self.processes = [
            process.successor(membership)
            for process, membership in zip(self.processes, memberships, strict=True)
        ]
        try:
            readies = await start_together(self.processes, self._settings)
        except Exception as error:  # whatever it is, the next attempt may go well
            return str(error)
        self.serve(self._settings, readies)
        failures = [process.failure for process in self.processes]
        return next(filter(None, failures), None)

    def _resume(self, seconds: float) -> None:
        self._restart = None
        streams = [stream for each in self._orphans if (stream := each())]
        self._orphans.clear()
        waiting = [stream for stream in streams if not stream.finished]
        _logger.warning(
            "the engine is back after %.1f s; %d requests start again", seconds, len(waiting)
        )
        if self.on_ready:
            self.on_ready()
        for stream in waiting:
            if stream.request is not None:
                self._restarts.replayed += 1
                process, request = self._assign(stream.request)
                process.replay(stream, request)
                self._wake_others(process, request)

    def _keep_spare(self) -> None:
        if self._can_restart:
            self.processes[0].keep_spare()

    def _drop_spare(self) -> None:
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        for process in self.processes:
            process.drop_spare()

    # -- the end ---------------------------------------------------------------------------------

    def give_up(self, reason: str) -> None:
        """Count the group as dead for good, unless it is."""
        self._may_restart = False
        if self._failure is not None:
            return
        self._cancel()
        for process in self.processes:
            process.on_death = None
            process.give_up(reason)
        self._end(reason)

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self._inquest, self._restart) if task is not None]
        self._inquest = self._restart = None
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self, timeout: float) -> None:
        """End all processes, by force after ``timeout`` seconds; open streams get an error."""
        self._may_restart = False
        for process in self.processes:
            process.on_death = None
        await asyncio.gather(*self._cancel(), return_exceptions=True)
        for process in self.processes:
            process.on_death = process.on_orphan = None
        self._drop_spare()
        await self._close_processes(timeout)
        self._fail_orphans("the engine was shut down")

    async def _close_processes(self, timeout: float) -> None:
        await asyncio.gather(*(process.close(timeout) for process in self.processes))

    # -- streams of dead processes ---------------------------------------------------------------

    def _keep(self, stream: TokenStream) -> bool:
        """Whether a stream whose process died waits for the next one."""
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

    def generate(self, request: ClientRequest) -> TokenStream:
        """Send the request to the process with the fewest open sequences, see ProcessClient.

        Raises:
            EngineDeadError: it is dead, or being restarted.
            RequestError: the process has as many sequences as it takes.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if self.restarting:
            raise EngineDeadError("it is being restarted")
        if self._inquest is not None:
            raise EngineDeadError("one of its ranks is gone")
        process, request = self._assign(request)
        stream = process.generate(request)
        self._wake_others(process, request)
        return stream

    def _assign(self, request: ClientRequest) -> tuple[ProcessClient, ClientRequest]:
        """The process that computes a request; ranks in lockstep need its number."""
        if len(self.processes) == 1:
            return self.processes[0], request
        serving = self.processes
        if self._lockstep:
            request = msgspec.structs.replace(request, number=next(self._numbers))
        else:
            serving = [process for process in serving if process.alive] or serving
        return min(serving, key=lambda process: process.num_sequences), request

    def _wake_others(self, chosen: ProcessClient, request: ClientRequest) -> None:
        if self._lockstep:
            for process in self.processes:
                if process is not chosen:
                    process.wake(request.number)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        for each in self._orphans:
            stream = each()
            if stream is not None and stream.request_id == request_id:
                stream.abort(index)
        for process in self.processes:  # those that do not have it do nothing
            process.abort(request_id, index)

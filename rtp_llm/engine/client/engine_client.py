# SPDX-License-Identifier: Apache-2.0
"""The HTTP process's side of an engine of one or several processes, with restarts.

Imports no torch: it must be up at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rtp_llm.engine.client.engine_events import EngineEvents
from rtp_llm.engine.client.meeting_folder import MeetingFolder
from rtp_llm.engine.client.process_client import ProcessClient
from rtp_llm.engine.client.rank_group import RankGroup, start_together
from rtp_llm.engine.client.rank_metrics import all_ready, all_stats
from rtp_llm.engine.client.restarts import Restarts
from rtp_llm.engine.messages import (
    ClientRequest,
    EngineDeadError,
    EngineLog,
    EngineReady,
    EngineStats,
    OnStep,
)
from rtp_llm.engine.profile_messages import Profiled

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.client.stream import TokenStream


class EngineClient:
    """Starts the processes of an engine and sends each request to the one with the least to do.

    Ranks in lockstep live, die and restart together. The ranks of a dense model are restarted one
    by one, while the others serve; without restarts the first death ends them all. The first start
    is not repeated. ``on_death`` is called when the engine is dead for good. All methods but
    `spawn` belong to the event loop that runs `start`.
    """

    def __init__(
        self,
        module: str = "rtp_llm.engine.process.main",
        size: int = 1,
        restarts: Restarts | None = None,
        *,
        devices: int = 1,
        spare: bool = False,
    ) -> None:
        """``module``: what each of the ``size`` processes runs, a test has its own; ``devices``:
        how many each of several ranks has; ``spare``: keep the next process of an engine of one
        ready while it serves."""
        self.restarts = restarts or Restarts(0)
        self._spare = spare and size == 1
        self._events = EngineEvents()
        self._meeting = MeetingFolder(size, devices) if size > 1 else None
        self._spawned = [
            ProcessClient(
                module, self._meeting.membership(rank) if self._meeting else None, self._events
            )
            for rank in range(size)
        ]
        self._groups: list[RankGroup] = []
        self._ids = itertools.count(1)
        self._failure: str | None = None
        self.ready: EngineReady | None = None
        """What the engine reported when it was ready, the last time."""
        self.on_death: Callable[[], None] | None = None

    @property
    def on_step(self) -> OnStep | None:
        """Called once for each step of each process with the number of sequences in it."""
        return self._events.on_step

    @on_step.setter
    def on_step(self, call: OnStep | None) -> None:
        self._events.on_step = call

    @property
    def on_log(self) -> Callable[[EngineLog], None] | None:
        """Called with each log line of the engine; without it they go to this process's log."""
        return self._events.on_log

    @on_log.setter
    def on_log(self, call: Callable[[EngineLog], None] | None) -> None:
        self._events.on_log = call

    # -- life ------------------------------------------------------------------------------------

    def spawn(self, settings: Settings) -> None:
        """Start the processes without waiting; none is left if one cannot be started."""
        try:
            for process in self._spawned:
                process.spawn(settings)
        except BaseException:
            for process in self._spawned:
                process.abandon()
            self._remove_meeting()
            raise

    async def start(self, settings: Settings) -> EngineReady:
        """Wait until all processes serve; raises EngineStartError."""
        self.spawn(settings)
        try:
            readies = await start_together(self._spawned, settings)
        except BaseException:
            self._remove_meeting()
            raise
        apart = len(readies) > 1 and self.restarts.limit > 0 and not readies[0].lockstep
        members = [[each] for each in self._spawned] if apart else [self._spawned]
        for processes in members:
            meeting = None if apart else self._meeting
            group = RankGroup(processes, self.restarts, meeting, spare=self._spare)
            group.on_ready, group.on_death = self._became_ready, self._died
            first = self._spawned.index(processes[0])
            self._groups.append(group)
            group.serve(settings, readies[first : first + len(processes)])
        self.ready = all_ready(readies)
        return self.ready

    def _became_ready(self) -> None:
        self.ready = all_ready([each for group in self._groups for each in group.readies])

    def _died(self) -> None:
        """A group is dead for good, and so are the others."""
        if self._failure is not None:
            return
        failures = [group.failure for group in self._groups]
        rank, reason = next((rank, text) for rank, text in enumerate(failures) if text)
        self._failure = reason if len(self._groups) == 1 else f"rank {rank}: {reason}"
        for group in self._groups:
            group.give_up(self._failure)
        if self.on_death:
            self.on_death()

    def stop_restarting(self) -> None:
        """Let the next death be the last one; a restart that is under way goes on."""
        self.restarts.stop()

    async def close(self, timeout: float = 5.0) -> None:
        """End all processes, by force after ``timeout`` seconds; open streams get an error."""
        closing: Sequence[RankGroup | ProcessClient] = self._groups or self._spawned
        await asyncio.gather(*(each.close(timeout) for each in closing))
        self._remove_meeting()

    def _remove_meeting(self) -> None:
        if self._meeting is not None:
            self._meeting.remove()

    # -- state -----------------------------------------------------------------------------------

    @property
    def processes(self) -> list[ProcessClient]:
        """The clients of the processes as they are now, by rank."""
        return [each for group in self._groups for each in group.processes] or self._spawned

    @property
    def alive(self) -> bool:
        """Whether requests are served, by one group at least.

        One that is silent, whose heartbeat is not young, may only have to wait.
        """
        return self._failure is None and any(group.alive for group in self._groups)

    @property
    def restarting(self) -> bool:
        """Whether nothing serves, and something will again."""
        return (
            self._failure is None
            and not self.alive
            and any(group.restarting for group in self._groups)
        )

    @property
    def failure(self) -> str | None:
        """Why the engine is dead and stays so, None while it is not."""
        if self._failure is None and len(self._groups) == 1:
            return self._groups[0].failure
        return self._failure

    @property
    def ranks_up(self) -> tuple[int, int]:
        """Processes that serve, and all of them."""
        return sum(group.ranks_up for group in self._groups), len(self._spawned)

    @property
    def num_sequences(self) -> int:
        """Sequences of open requests."""
        return sum(group.num_sequences for group in self._groups)

    @property
    def latest_stats(self) -> EngineStats:
        """The last heartbeats of all processes together."""
        return all_stats([each for group in self._groups for each in group.latest_stats])

    # -- requests --------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        """A number that no request of this client had."""
        return next(self._ids)

    def generate(self, request: ClientRequest) -> TokenStream:
        """Send the request and return the stream of its deltas, see ProcessClient.

        Raises:
            EngineDeadError: the engine is not running, dead, or being restarted.
            RequestError: all processes have as many sequences as they take.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        groups = self._groups
        if not groups:
            raise EngineDeadError("the engine is not running")
        if len(groups) > 1:
            groups = [group for group in groups if group.alive] or groups
        return min(groups, key=lambda group: group.num_sequences).generate(request)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        for group in self._groups:  # those that do not have it do nothing
            group.abort(request_id, index)

    async def profile(self, *, start: bool) -> list[Profiled]:
        """Start or stop the profilers of all processes; what each says, by rank.

        Raises:
            ProfilerError: one runs already, or does not run; others may have done it.
            EngineDeadError: a process is not running, or dies meanwhile.
        """
        return await asyncio.gather(*(each.profile(start=start) for each in self.processes))

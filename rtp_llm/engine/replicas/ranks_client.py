# SPDX-License-Identifier: Apache-2.0
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
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.client.restarting_client import RestartingClient, Restarts
from rtp_llm.engine.messages import (
    AddRequest,
    EngineDeadError,
    EngineLog,
    EngineReady,
    EngineStartError,
    EngineStats,
    OnStep,
    log_line,
)
from rtp_llm.engine.replicas.replica_metrics import all_ready, all_stats

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.client.stream import TokenStream

# What the ranks that survive say of the one that did not; its own words are the reason.
_SURVIVOR = "lost contact to another rank"
_LAST_WORDS_SECONDS = 0.5
# In so many steps, counted: where this process had to wait for a core, a dying one had to as well,
# and no time would be left for it.
LOOKS, LOOK_SECONDS = 50, 0.01


class RanksClient:
    """The interface of an EngineClient over `size` of them.

    Ranks in lockstep live and die together. Those of a dense model do so only without ``restarts``:
    else each is restarted alone, while the others serve.
    """

    def __init__(
        self,
        size: int,
        module: str = "rtp_llm.engine.process.main",
        restarts: Restarts | None = None,
        awaited_bytes: Sequence[int] = (),
        devices: int = 1,
    ) -> None:
        """`awaited_bytes`: of each rank, see EngineClient; each has so many `devices`."""
        self._module, self._devices = module, devices
        self._restarts = restarts
        self._folder = Path(tempfile.mkdtemp(prefix="rtp-llm-ranks-"))
        meet = str(self._folder / "meet")
        awaited = awaited_bytes or [0] * size
        self._clients = [
            EngineClient(module, Membership(r, size, meet, devices), awaited[r])
            for r in range(size)
        ]
        # The same, or with restarts around each.
        self._members: list[EngineClient | RestartingClient] = [*self._clients]
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._failure: str | None = None
        self._serving = False
        for rank, client in enumerate(self._clients):
            client.on_death = self._died
            client.on_log = self._log_of(rank)
        self.ready: EngineReady | None = None
        self.on_log: Callable[[EngineLog], None] | None = None
        self.on_death: Callable[[], None] | None = None

    @property
    def on_step(self) -> OnStep | None:
        """Called once for each step of each rank with the number of sequences in it."""
        return self._members[0].on_step

    @on_step.setter
    def on_step(self, call: OnStep | None) -> None:
        for member in self._members:
            member.on_step = call

    @property
    def on_orphan(self) -> Callable[[TokenStream], bool] | None:
        """As of an EngineClient, where the ranks die together."""
        return self._clients[0].on_orphan

    @on_orphan.setter
    def on_orphan(self, call: Callable[[TokenStream], bool] | None) -> None:
        if not self.restarts_ranks:
            for client in self._clients:
                client.on_orphan = call

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
        each = [task.result() for task in tasks]
        self.ready = all_ready(each)
        self._serving = True
        if self.restarts_ranks:
            self._restart_alone(settings, each)
        return self.ready

    def _restart_alone(self, settings: Settings, ready: Sequence[EngineReady]) -> None:
        assert self._restarts is not None
        self._members = []
        for client, its_ready in zip(self._clients, ready, strict=True):
            member = RestartingClient(client, self._restarts)
            member.take_over(settings, its_ready)
            member.on_death = self._died
            self._members.append(member)

    def successor(self) -> RanksClient:
        """A client for the processes that take the place of these."""
        awaited = [client.awaited_bytes for client in self._clients]
        return RanksClient(len(awaited), self._module, self._restarts, awaited, self._devices)

    @property
    def _lockstep(self) -> bool:
        return self.ready is not None and self.ready.lockstep

    @property
    def ended(self) -> str | None:
        """See EngineClient; each rank knows of itself."""
        return None

    def keep_spare(self) -> None:
        """Its ranks have none."""

    def drop_spare(self) -> None:
        """Its ranks have none."""

    @property
    def restarts_ranks(self) -> bool:
        """Ranks are restarted one by one, so that a death of all of them is the last one."""
        may = self._restarts is not None and self._restarts.limit > 0
        return may and self.ready is not None and not self._lockstep

    @property
    def alive(self) -> bool:
        """Whether requests are served: by all ranks in lockstep, or by one of a dense model.

        A silent one, whose heartbeat is not young, may only have to wait.
        """
        enough = all if self._lockstep else any
        return (
            self._serving
            and self._failure is None
            and enough(member.alive for member in self._members)
        )

    @property
    def restarting(self) -> bool:
        """No rank serves, and one is to be back."""
        return not self.alive and any(member.restarting for member in self._members)

    @property
    def ranks_up(self) -> tuple[int, int]:
        """Ranks that serve, and all of them."""
        return sum(member.alive for member in self._members), len(self._members)

    @property
    def num_sequences(self) -> int:
        """Sequences of open requests."""
        return sum(member.num_sequences for member in self._members)

    @property
    def failure(self) -> str | None:
        """Why the engine is dead, None while it is not."""
        return self._failure

    @property
    def latest_stats(self) -> EngineStats:
        """The ranks' metrics together."""
        return all_stats([member.latest_stats for member in self._members])

    async def close(self, timeout: float = 5.0) -> None:
        """End all processes, by force after ``timeout`` seconds; open streams get an error."""
        self._serving = False
        for member in self._members:
            member.on_death = None
        await asyncio.gather(*(member.close(timeout) for member in self._members))
        shutil.rmtree(self._folder, ignore_errors=True)

    async def reap(self) -> bool:
        """See dead ranks to their end; False when not even a kill ends one."""
        return all(await asyncio.gather(*(client.reap() for client in self._clients)))

    def _died(self) -> None:
        """One rank is dead, and no other goes on."""
        if self._failure is not None or self.ready is None:
            return
        self._failure = "..."  # the others' deaths, which this causes, are no news
        self.give_up(reason_of(self._last_words()))
        if self.on_death:
            self.on_death()

    def give_up(self, reason: str) -> None:
        """Count all ranks as dead."""
        self._failure = reason
        for member in self._members:
            member.give_up(reason)

    def _last_words(self) -> list[str | None]:
        """What each rank died of. One that was killed may be found dead only after its survivors,
        who see its connections end, have told of it: it is waited for, briefly."""
        if not self._lockstep:
            return [member.failure for member in self._members]
        words: list[str | None] = []
        for _ in range(LOOKS):
            words = [client.last_words() for client in self._clients]
            if any(text and _SURVIVOR not in text for text in words):
                break
            time.sleep(LOOK_SECONDS)
        return words

    def _log_of(self, rank: int) -> Callable[[EngineLog], None]:
        def log(line: EngineLog) -> None:
            named = msgspec.structs.replace(line, message=f"rank {rank}: {line.message}")
            (self.on_log or log_line)(named)

        return log

    # -- requests ------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        """A number that no request of this client had."""
        return next(self._ids)

    def generate(self, request: AddRequest) -> TokenStream:
        """Send the request to the rank with fewest open sequences, the first among equals.

        Raises:
            EngineDeadError: no rank is alive, or one that the others need is not.
            RequestError: all ranks have as many sequences as they take.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if not self._lockstep:
            serving = [member for member in self._members if member.alive] or self._members
            return min(serving, key=_num_sequences).generate(request)
        chosen = min(self._clients, key=_num_sequences)
        numbered = msgspec.structs.replace(request, number=next(self._numbers))
        stream = chosen.generate(numbered)
        self._wake_others(chosen, numbered.number)
        return stream

    def replay(self, stream: TokenStream, request: AddRequest) -> None:
        """See EngineClient; where the ranks die together."""
        chosen = min(self._clients, key=_num_sequences)
        numbered = msgspec.structs.replace(request, number=next(self._numbers))
        chosen.replay(stream, numbered)
        self._wake_others(chosen, numbered.number)

    def _wake_others(self, chosen: EngineClient, number: int) -> None:
        for client in self._clients:
            if client is not chosen:
                client.wake(number)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        for member in self._members:  # those that do not have it do nothing
            member.abort(request_id, index)


def _num_sequences(client: EngineClient | RestartingClient) -> int:
    return client.num_sequences


def _failure_of(task: asyncio.Task[EngineReady]) -> str | None:
    error = task.exception() if task.done() and not task.cancelled() else None
    return None if error is None else str(error)


def reason_of(failures: Sequence[str | None]) -> str:
    """The failure that caused the others, with its rank."""
    said = [(rank, text) for rank, text in enumerate(failures) if text]
    rank, text = min(said, key=lambda each: _SURVIVOR in each[1])
    return f"rank {rank}: {text}"

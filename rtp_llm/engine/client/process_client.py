# SPDX-License-Identifier: Apache-2.0
"""The HTTP process's side of one engine process. Imports no torch: it must be up at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.engine.client.backlog import Backlog
from rtp_llm.engine.client.engine_events import EngineEvents
from rtp_llm.engine.client.engine_link import EngineLink
from rtp_llm.engine.client.liveness import Liveness
from rtp_llm.engine.client.profile_calls import ProfileCalls
from rtp_llm.engine.client.stream import TokenStream
from rtp_llm.engine.deltas import decode_prompt_logprobs, decode_step
from rtp_llm.engine.memory_release import await_memory_environment
from rtp_llm.engine.messages import (
    AbortRequest,
    ClientRequest,
    EngineDeadError,
    EngineFatal,
    EngineLog,
    EngineReady,
    EngineStartError,
    EngineStats,
    FromEngine,
    PromptLogprobs,
    RequestError,
    RequestFailed,
    Shutdown,
    StepOutput,
    Wake,
    log_line,
)
from rtp_llm.engine.profile_messages import Profiled
from rtp_llm.worker.ranks.stopped import STOPPED, StopWatch

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership

TICK_SECONDS = 0.1
# A process that ends by itself gets so long before it is killed, and so long to be gone then.
_END_SECONDS, _GONE_SECONDS = 1.0, 60.0


class ProcessClient:
    """Starts an engine process, hands it requests and gives each its stream of deltas.

    All methods belong to the event loop that runs ``start``. ``on_death`` is called when the
    process has died. Before that, ``on_orphan`` is called with each of its streams: True when it
    sees to it that the stream ends.
    """

    def __init__(
        self,
        module: str = "rtp_llm.engine.process.main",
        membership: Membership | None = None,
        events: EngineEvents | None = None,
        expected_free_bytes: int = 0,
        spare: EngineLink | None = None,
    ) -> None:
        """``module`` is what the process runs (a test has its own), ``membership`` its rank.

        ``expected_free_bytes``: free memory of the device that the process waits for before it
        loads; ``spare``: a process that waits for settings.
        """
        self._module = module
        self._membership = membership
        self._events = events or EngineEvents()
        self._expected_free_bytes = expected_free_bytes
        self.ready: EngineReady | None = None
        self.latest_stats = EngineStats()
        self.on_death: Callable[[], None] | None = None
        self.on_orphan: Callable[[TokenStream], bool] | None = None
        self._link: EngineLink | None = None
        self._spare = spare
        # Weak, so that a stream whose consumer forgot it is collected, which aborts the request.
        # A plain dictionary of references: looked into for each row of each step.
        self._streams: dict[int, weakref.ref[TokenStream]] = {}
        self._sequences = 0
        self._backlog = Backlog(self._stop_stalled)
        self._failure: EngineDeadError | None = None
        self._profile_calls = ProfileCalls()
        self._signs = Liveness()
        self._watcher: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------

    def spawn(self, settings: Settings) -> None:
        """Start the process without waiting; needs no event loop, so it can come very early."""
        if self._link is None:
            if self._spare is not None and self._spare.process.running:
                self._link, self._spare = self._spare, None
                self._link.begin(settings)
            else:
                self.drop_spare()
                self._link = self._new_link(settings)

    def _new_link(self, settings: Settings | None) -> EngineLink:
        environ = await_memory_environment(self.expected_free_bytes)
        return EngineLink(self._module, settings, self._membership, environ)

    def keep_spare(self) -> None:
        """Start the process of the successor, which imports what it needs and waits."""
        if self._spare is None and self._link is not None and self._failure is None:
            self._spare = self._new_link(None)

    def drop_spare(self) -> None:
        """End that process: nothing is to be started again."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()

    def successor(self, membership: Membership | None = None) -> ProcessClient:
        """A client for the process that takes the place of this one's; None: of the same rank, in
        the same meeting."""
        spare, self._spare = self._spare, None
        membership = membership or self._membership
        return ProcessClient(
            self._module, membership, self._events, self.expected_free_bytes, spare
        )

    @property
    def expected_free_bytes(self) -> int:
        """Free memory of the device, in bytes, as it was before the first start; 0: unknown."""
        return self._expected_free_bytes or (self.ready.free_bytes if self.ready else 0)

    def abandon(self) -> None:
        """End a process that was spawned and is not to start; needs no event loop."""
        link, self._link = self._link, None
        if link is not None:
            link.end()

    async def start(self, settings: Settings) -> EngineReady:
        """Spawn the process unless that was done, and wait until the model serves.

        Raises:
            EngineStartError: with the engine's own message, its exit code or the time-out.
        """
        self.spawn(settings)
        link = self._require_link()
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[EngineReady] = loop.create_future()
        loop.add_reader(link.descriptor, self._receive, link)
        self._watcher = loop.create_task(self._watch(link, settings.step_timeout))
        try:
            self.ready = await asyncio.wait_for(self._started, settings.start_timeout)
        except BaseException as error:
            await self.close(timeout=0.0)
            if isinstance(error, TimeoutError):
                raise EngineStartError(
                    f"the engine was not ready after start_timeout={settings.start_timeout:.15g} s"
                ) from error
            raise
        return self.ready

    def _require_link(self) -> EngineLink:
        if self._link is None:
            raise EngineDeadError("the engine is not running")
        return self._link

    @property
    def alive(self) -> bool:
        """The model is loaded, the process runs and its heartbeat is young."""
        return (
            self.ready is not None
            and self._failure is None
            and self._link is not None
            and self._link.process.running
            and not self._signs.silent(time.monotonic())
        )

    @property
    def failure(self) -> str | None:
        """Why the engine is dead, None while it is not."""
        return str(self._failure) if self._failure else None

    @property
    def ended(self) -> str | None:
        """How the process ended, None while it runs; `failure` says so a moment later."""
        if self.ready is None or self._link is None or self._link.process.running:
            return None
        return self._link.process.exit_report()

    @property
    def num_sequences(self) -> int:
        """Sequences of open requests."""
        return self._sequences

    def exit_report(self) -> str | None:
        """Why the engine is dead, by what is known at this very moment."""
        if self._link is not None and self._failure is None:
            self._receive(self._link)
            if self._failure is None and not self._link.process.running:
                self._die(self._link.process.exit_report())
        return self.failure

    def give_up(self, reason: str) -> None:
        """Count the engine as dead, unless it is."""
        self._die(reason)

    async def reap(self) -> bool:
        """See a dead engine's process to its end; False when not even a kill ends it."""
        return self._link is None or await self._link.process.stop(_END_SECONDS, _GONE_SECONDS)

    async def close(self, timeout: float = 5.0) -> None:
        """End the engine process, by force after ``timeout`` seconds; open streams get an error.

        The successor's process stays, see `drop_spare`.
        """
        link, self._link = self._link, None
        if link is None:
            return
        self._fail_streams(EngineDeadError("the engine was shut down"))
        link.send(Shutdown())
        await link.process.stop(timeout)
        if self._watcher is not None:
            asyncio.get_running_loop().remove_reader(link.descriptor)
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        link.discard()

    # -- requests ------------------------------------------------------------------------------

    def generate(self, request: ClientRequest) -> TokenStream:
        """Send the request and return the stream of its deltas (an async iterator).

        Closing the stream, cancelling the task that waits on it or dropping it aborts the request.

        Raises:
            EngineDeadError: the engine is not alive.
            RequestError: as many sequences as the engine takes are there already (queue_full).
        """
        link = self._admit(request)
        stream = TokenStream(request, asyncio.get_running_loop(), self._leave, self._backlog)
        self._open(stream, request, link)
        return stream

    def replay(self, stream: TokenStream, request: ClientRequest) -> None:
        """Compute ``request`` for a stream that had no output from another engine."""
        stream.replay(self._leave, self._backlog)
        self._open(stream, request, self._require_link())

    def _open(self, stream: TokenStream, request: ClientRequest, link: EngineLink) -> None:
        self._streams[request.request_id] = weakref.ref(stream)
        self._sequences += request.params.n
        link.send(request)

    def _admit(self, request: ClientRequest) -> EngineLink:
        if self._failure is not None:
            raise self._failure
        link = self._require_link()
        if self.ready is None:
            raise EngineDeadError("the engine is still loading")
        if request.request_id in self._streams:
            raise ValueError(f"request_id={request.request_id} is in use")
        # The engine checks this too, but cannot answer while a long step runs.
        limit = self.ready.max_running + self.ready.max_queued
        if self._sequences + request.params.n > limit:
            raise RequestError(
                "queue_full",
                f"{self._sequences} sequences are running or waiting, at most {limit} are taken",
            )
        return link

    def wake(self, number: int) -> None:
        """Tell the engine that another rank got the request of this number."""
        if self._link is not None:
            self._link.send(Wake(number=number))

    async def profile(self, *, start: bool) -> Profiled:
        """Start or stop the process's profiler. Raises ProfilerError, EngineDeadError."""
        return await self._profile_calls.call(self._require_link(), start=start)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; the stream ends with finish_reason "abort"."""
        stream = self._stream(request_id)
        if stream is None or self._link is None:
            return
        sequences = stream.abort(index)
        self._link.send(AbortRequest(sequences=sequences))

    def _stop_stalled(self, request_id: int) -> None:
        """Too much waits of this request: its consumer does not read."""
        stream = self._stream(request_id)
        if stream is None:
            self._backlog.forget(request_id)
            return
        if self._link is not None and not stream.finished:
            self._link.send(AbortRequest(sequences=stream.open_sequences()))
        text = "the answer was read too slowly: more of it waited than is kept"
        stream.drop(RequestError("stalled", text))

    def _leave(self, stream: TokenStream) -> None:
        """The stream delivered all it had, or its consumer went away before; called once."""
        self._streams.pop(stream.request_id, None)
        self._sequences -= stream.num_sequences
        if not stream.finished and self._failure is None and self._link is not None:
            self._link.send(AbortRequest(sequences=stream.open_sequences()))

    # -- what the engine says ------------------------------------------------------------------

    def _receive(self, link: EngineLink) -> None:
        for message in link.receive():
            self._signs.receive(message, time.monotonic())
            self._take(message)

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutput():
                self._take_step(message)
            case EngineStats():
                self.latest_stats = message
            case PromptLogprobs():
                if stream := self._stream(message.request_id):
                    wanted = stream.params.prompt_logprobs or 0
                    entries = decode_prompt_logprobs(message, wanted)
                    stream.add_prompt_logprobs(message.start, entries)
            case RequestFailed():
                if stream := self._stream(message.request_id):
                    stream.fail(RequestError(message.kind, message.message))
            case EngineLog():
                self._log(message)
            case Profiled():
                self._profile_calls.take(message)
            case EngineReady():
                if not self._started.done():
                    self._started.set_result(message)
            case EngineFatal():
                self._die(message.message)

    def _log(self, line: EngineLog) -> None:
        if self._membership is not None and self._membership.size > 1:
            text = f"rank {self._membership.rank}: {line.message}"
            line = msgspec.structs.replace(line, message=text)
        (self._events.on_log or log_line)(line)

    def _take_step(self, output: StepOutput) -> None:
        references, new_tokens = self._streams, 0
        for request_id, delta in decode_step(output):
            new_tokens += len(delta.token_ids)
            # A row of a request that was just aborted has no stream any more.
            if (reference := references.get(request_id)) and (stream := reference()):
                if stream.request is not None:  # its first output
                    new_tokens += stream.request.num_prompt_tokens - delta.cached_tokens
                stream.add(delta)
        on_step = self._events.on_step
        if on_step and output.num_sequences:
            on_step(output.num_sequences, output.batch_tokens, new_tokens)

    def _stream(self, request_id: int) -> TokenStream | None:
        reference = self._streams.get(request_id)
        return None if reference is None else reference()

    async def _watch(self, link: EngineLink, step_timeout: float) -> None:
        stop = StopWatch(link.process.pid)
        while self._failure is None and self._link is not None:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._signs.look(now)
            if not link.process.running:
                # Its last words may still be on their way from the kernel to the inbox.
                await asyncio.sleep(TICK_SECONDS / 2)
                self._receive(link)
                self._die(link.process.exit_report())
            elif stop.look(now):
                link.process.kill()  # it ends in no other way
                self._die(f"the engine process {STOPPED}")
            elif self.ready is not None:
                self._receive(link)
                if reason := self._signs.failure(now, step_timeout):
                    self._die(reason)

    def _die(self, reason: str) -> None:
        if self._failure is not None or self._link is None:
            return
        self._failure = EngineDeadError(reason)
        if not self._started.done():
            self._started.set_exception(EngineStartError(reason))
        self._fail_streams(self._failure)
        self._link.kill_soon()
        if self.on_death:
            self.on_death()

    def _fail_streams(self, error: EngineDeadError) -> None:
        self._profile_calls.fail(error)
        streams = [stream for reference in self._streams.values() if (stream := reference())]
        self._streams.clear()
        for stream in streams:
            if not (self.on_orphan and self.on_orphan(stream)):
                stream.fail(error)

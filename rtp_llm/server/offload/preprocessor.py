# SPDX-License-Identifier: Apache-2.0
"""Prepares bodies: short ones in the event loop, the others in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import replace
from typing import Any, cast

from rtp_llm.config.settings import Settings
from rtp_llm.request.constraints import Grammar
from rtp_llm.server.offload.fork_client import CannotStartError, ForkClient
from rtp_llm.server.offload.grammars import Grammars
from rtp_llm.server.offload.inline_limit import InlineLimit
from rtp_llm.server.offload.lane import Lane, OverrunError
from rtp_llm.server.offload.process_link import PrepareLink
from rtp_llm.server.offload.time_limit import TakesTooLong, TimeLimit
from rtp_llm.server.offload.wire import Call, facts_of
from rtp_llm.server.turn.body_kind import BodyKind, P
from rtp_llm.server.turn.grammar_source import GRAMMAR
from rtp_llm.server.turn.prepared import Prepared, PreparedJobs
from rtp_llm.server.turn.served_model import NotInline, ServedModel
from rtp_llm.server.types.errors import too_expensive, unavailable
from rtp_llm.text.grammar.check import DEADLINE_SECONDS

# Bodies with more bytes go to a process. Tokenising a prompt of this length takes 2 ms, and many
# requests can arrive at once.
INLINE_BYTES = 4096
# Rendering that takes longer than this is aborted and restarted in a process: a template may take
# long, or forever, on some conversations only.
MAX_INLINE_SECONDS = 0.1
# Memory for preparing one body, besides multiples of its length and of the model's context.
BASE_MEMORY_BYTES = 208 * 2**20
MEMORY_BYTES_PER_TOKEN = 512

_log = logging.getLogger("rtp_llm.server")


class Preprocessor:
    """Turns bodies into prepared requests. Belongs to an event loop.

    Grammars have separate processes, so that they do not block other work. All processes are forked
    by a server that is started by `start`, or by the first body that needs a process: a `client`.
    """

    def __init__(self, settings: Settings, client: type[ForkClient] = ForkClient) -> None:
        self._settings, self._client = settings, client
        size = settings.prepare_processes or default_processes()
        self._bodies, self._makers = Lane(size, self._fork), Lane(size, self._fork)
        self._grammars = Grammars()
        self._server: ForkClient | None = None
        self._inline = InlineLimit(INLINE_BYTES)
        self._limit = TimeLimit(MAX_INLINE_SECONDS)
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the fork server early, so that it is loaded when it is needed."""
        if self._server is None:
            self._server = self._client(self._settings)
            self._starting = asyncio.get_running_loop().create_task(self._warm(self._server))

    async def close(self) -> None:
        """End all processes, abandoning their work."""
        if self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            ended, self._server = self._server.close(), None
            await ended

    @property
    def pids(self) -> list[int]:
        """The pids of the processes that prepare bodies."""
        return self._bodies.pids

    @property
    def grammar_pids(self) -> list[int]:
        """The pids of the processes that compile grammars."""
        return self._makers.pids

    async def run(self, kind: BodyKind[P], body: bytes, model: ServedModel) -> P:
        """See Preprocessing."""
        prepared = await self._prepare(kind, body, model)
        if isinstance(prepared, PreparedJobs):
            return cast("P", await self._with_grammars(prepared, model))
        return prepared

    async def _prepare(self, kind: BodyKind[P], body: bytes, model: ServedModel) -> P:
        size = len(body)
        if size <= INLINE_BYTES and (not kind.renders or self._inline.takes(size)):
            with contextlib.suppress(NotInline, TakesTooLong):
                return self._run_inline(kind, body, model)
        seconds = self._settings.prepare_timeout
        # Processes of grammars also do what compiles one.
        lane = self._makers if kind.compiles else self._bodies
        try:
            return await lane.call(kind, _call(kind, model), body, seconds, model.client)
        except OverrunError as error:
            hint = " (see --prepare-timeout)" if error.late else ""
            raise too_expensive(f"{error}{hint}") from error

    def _run_inline(self, kind: BodyKind[P], body: bytes, model: ServedModel) -> P:
        if not kind.renders:
            return kind.prepare(body, model)
        began = time.thread_time()
        try:
            with self._limit.inside():
                return kind.prepare(body, model)
        finally:
            self._inline.note(len(body), time.thread_time() - began)

    async def _with_grammars(
        self, prepared: PreparedJobs[Any], model: ServedModel
    ) -> PreparedJobs[Any]:
        """Fill in the grammars of the jobs; usually all have the same source."""
        sources = {job.grammar_source for job in prepared.jobs if job.grammar_source}
        if not sources:
            return prepared
        grammars = {source: await self._grammar(source, model) for source in sources}
        jobs = [
            replace(job, grammar=grammars.get(job.grammar_source), grammar_source=b"")
            for job in prepared.jobs
        ]
        return replace(prepared, jobs=jobs)

    async def _grammar(self, source: bytes, model: ServedModel) -> Grammar:
        call, client = _call(GRAMMAR, model), model.client
        return await self._grammars.find(
            source,
            client,
            lambda: self._makers.call(GRAMMAR, call, source, DEADLINE_SECONDS, client),
        )

    # -- the processes -------------------------------------------------------------------------

    async def _fork(self) -> PrepareLink:
        """Fork a process; raises ApiError 503 if none can be started."""
        if self._server is not None and not self._server.alive:
            self._server = None
        self.start()
        try:
            assert self._server is not None
            return await self._server.fork()
        except CannotStartError as error:
            _log.error("preparation processes cannot start: %s", error)
            raise unavailable(
                "The process that prepares long requests cannot start.", "overloaded"
            ) from error

    async def _warm(self, server: ForkClient) -> None:
        with contextlib.suppress(CannotStartError):  # reported by the first body that needs it
            self._inline.set_template_speed((await server.loaded()).render_seconds)


def default_processes() -> int:
    """The default number of processes: a quarter of the CPU cores, from 2 to 8."""
    return min(max(2, len(os.sched_getaffinity(0)) // 4), 8)


def _call(kind: BodyKind[Prepared], model: ServedModel) -> Call:
    memory = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_TOKEN * model.limits.max_model_len
    return Call(kind.name, facts_of(model), memory)

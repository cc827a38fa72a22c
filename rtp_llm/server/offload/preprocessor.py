# SPDX-License-Identifier: Apache-2.0
"""Prepares bodies: short ones in the event loop, the others in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import replace
from typing import Literal, overload

from rtp_llm.config.settings import Settings
from rtp_llm.server.offload.fork_client import CannotStartError, ForkClient
from rtp_llm.server.offload.grammars import Grammars
from rtp_llm.server.offload.inline_limit import InlineLimit
from rtp_llm.server.offload.lane import Lane, OverrunError
from rtp_llm.server.offload.process_link import PrepareLink
from rtp_llm.server.offload.time_limit import TakesTooLong, TimeLimit
from rtp_llm.server.offload.wire import FUNCTIONS, Call, Kind, facts_of
from rtp_llm.server.turn.prepared import (
    Prepared,
    PreparedBody,
    PreparedChat,
    PreparedCompletion,
    PreparedInfill,
    PreparedJobs,
    PreparedMessage,
    PreparedOllama,
    PreparedResponse,
)
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


class Preparation:
    """Turns bodies into prepared requests. Belongs to an event loop.

    Grammars have separate processes, so that they do not block other work. All processes are forked
    by a server that is started by `start`, or by the first body that needs a process.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
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
            self._server = ForkClient(self._settings)
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

    @overload
    async def run(
        self, kind: Literal["chat", "chat_batch"], body: bytes, model: ServedModel
    ) -> PreparedChat: ...

    @overload
    async def run(
        self, kind: Literal["completion"], body: bytes, model: ServedModel
    ) -> PreparedCompletion: ...

    @overload
    async def run(
        self,
        kind: Literal["chat", "chat_batch", "completion", "invocation"],
        body: bytes,
        model: ServedModel,
    ) -> PreparedChat | PreparedCompletion: ...

    @overload
    async def run(
        self, kind: Literal["response"], body: bytes, model: ServedModel
    ) -> PreparedResponse: ...

    @overload
    async def run(
        self, kind: Literal["message"], body: bytes, model: ServedModel
    ) -> PreparedMessage: ...

    @overload
    async def run(
        self,
        kind: Literal["ollama_chat", "ollama_generate"],
        body: bytes,
        model: ServedModel,
    ) -> PreparedOllama | PreparedBody: ...

    @overload
    async def run(
        self, kind: Literal["infill"], body: bytes, model: ServedModel
    ) -> PreparedInfill: ...

    @overload
    async def run(
        self,
        kind: Literal[
            "count_tokens",
            "count_input",
            "render_chat",
            "render_completion",
            "tokenize",
            "detokenize",
        ],
        body: bytes,
        model: ServedModel,
    ) -> PreparedBody: ...

    async def run(self, kind: Kind, body: bytes, model: ServedModel) -> Prepared:
        """Prepare a body.

        Raises ApiError: the request's own, 400 if preparing it takes too much time or memory,
        503 if the queue is full.
        """
        prepared = await self._prepare(kind, body, model)
        if isinstance(prepared, PreparedBody):
            return prepared
        return await self._with_grammar(prepared, model)

    async def _prepare(self, kind: Kind, body: bytes, model: ServedModel) -> Prepared:
        size = len(body)
        if size <= INLINE_BYTES and (kind not in _RENDERING or self._inline.takes(size)):
            with contextlib.suppress(NotInline, TakesTooLong):
                return self._run_inline(kind, body, model)
        seconds = self._settings.prepare_timeout
        lane = self._makers if kind in _COMPILING else self._bodies
        try:
            return await lane.call(_call(kind, model), body, seconds, model.client)
        except OverrunError as error:
            hint = " (see --prepare-timeout)" if error.late else ""
            raise too_expensive(f"{error}{hint}") from error

    def _run_inline(self, kind: Kind, body: bytes, model: ServedModel) -> Prepared:
        if kind not in _RENDERING:
            return FUNCTIONS[kind](body, model)
        began = time.thread_time()
        try:
            with self._limit.inside():
                return FUNCTIONS[kind](body, model)
        finally:
            self._inline.note(len(body), time.thread_time() - began)

    async def _with_grammar(self, prepared: PreparedJobs, model: ServedModel) -> PreparedJobs:
        """Fill in the grammar of the jobs' common source."""
        source = prepared.jobs[0].grammar_source
        if not source:
            return prepared
        call, client = _call("grammar", model), model.client
        grammar = await self._grammars.find(
            source, client, lambda: self._makers.call(call, source, DEADLINE_SECONDS, client)
        )
        jobs = [replace(job, grammar=grammar, grammar_source=b"") for job in prepared.jobs]
        return replace(prepared, jobs=jobs)

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


def _call(kind: Kind, model: ServedModel) -> Call:
    memory = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_TOKEN * model.limits.max_model_len
    return Call(kind, facts_of(model), memory)


# Answers of these processes contain the grammar itself.
_COMPILING: frozenset[Kind] = frozenset({"render_chat", "render_completion"})
_RENDERING: frozenset[Kind] = frozenset(
    set(FUNCTIONS) - {"completion", "render_completion", "infill", "detokenize"}
)

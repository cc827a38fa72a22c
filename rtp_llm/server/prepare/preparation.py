"""Where bodies are prepared: short ones in the event loop, the others in a process beside it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import os
import time
from typing import Literal, overload

from rtp_llm.config.settings import Settings
from rtp_llm.server.errors import ApiError, too_expensive, unavailable
from rtp_llm.server.prepare.link import PrepareLink, ProcessDiedError
from rtp_llm.server.prepare.messages import FUNCTIONS, Call, Hello, Kind, facts_of, unpack
from rtp_llm.server.prepare.prepared import (
    Prepared,
    PreparedBody,
    PreparedChat,
    PreparedCompletion,
    PreparedInfill,
    PreparedMessage,
    PreparedOllama,
    PreparedResponse,
)
from rtp_llm.server.prepare.served_model import NotInline, ServedModel
from rtp_llm.server.prepare.time_limit import TakesTooLong, TimeLimit

# Longer bodies, in bytes, go to the process. So long a prompt takes 2 ms to tokenise, and that many
# requests can come at once.
INLINE_BYTES = 4096
# A template that took more seconds for one conversation leaves the event loop for good.
SLOW_RENDER_SECONDS = 0.02
# And one that has not come to an end after so long is ended, and begun anew in the process: a
# template may take long, or for ever, for some conversations only.
MAX_INLINE_SECONDS = 0.1
# Bodies that wait for the process: together, and how many. More are refused with 503.
MAX_WAITING_BYTES = 64 * 2**20
MAX_WAITING = 1024
# What preparing one body may take beside the body's own length and the model's context.
BASE_MEMORY_BYTES = 208 * 2**20
MEMORY_BYTES_PER_TOKEN = 512
# A process that dies under a request may have been killed for another's sake; twice is no accident.
ATTEMPTS = 2

_log = logging.getLogger("rtp_llm.server")


class Preparation:
    """Turns bodies into what they ask for. Belongs to an event loop.

    The process starts with the first long body, or with `start`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._link: PrepareLink | None = None
        self._busy = False
        self._turns: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._waiting_bytes = 0
        self._slow_template = False
        self._limit = TimeLimit(MAX_INLINE_SECONDS)
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have the process ready before it is needed."""
        if self._starting is None:
            self._link = self._link or PrepareLink.spawn()
            self._starting = asyncio.get_running_loop().create_task(self._warm())

    async def close(self) -> None:
        """End the process; what it prepares is lost."""
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        if self._link is not None:
            ended, self._link = self._link.kill(), None
            await ended

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._link is None else self._link.pid

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
        self, kind: Literal["ollama_chat", "ollama_generate"], body: bytes, model: ServedModel
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
        """What the body asks for.

        Raises ApiError: the request's own, 400 when preparing it takes too long or too much memory,
        503 when too much waits.
        """
        if len(body) <= INLINE_BYTES and not (self._slow_template and kind in _RENDERING):
            with contextlib.suppress(NotInline, TakesTooLong):
                return self._run_inline(kind, body, model)
        await self._take_turn(len(body))
        try:
            return await self._call(kind, body, model)
        finally:
            self._pass_turn()

    def _run_inline(self, kind: Kind, body: bytes, model: ServedModel) -> Prepared:
        began = time.thread_time()
        try:
            if kind not in _RENDERING:
                return FUNCTIONS[kind](body, model)
            with self._limit.inside():
                return FUNCTIONS[kind](body, model)
        finally:
            if kind in _RENDERING and time.thread_time() - began > SLOW_RENDER_SECONDS:
                self._slow_template = True

    # -- turns: one body at a time, the shortest first -----------------------------------------

    async def _take_turn(self, size: int) -> None:
        if not self._busy:
            self._busy = True
            return
        if len(self._turns) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise unavailable(
                f"{len(self._turns)} long requests of {self._waiting_bytes} bytes wait to be "
                "prepared; try again.",
                "overloaded",
            )
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._turns, (size, next(self._numbers), turn))
        self._waiting_bytes += size
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_turn()
            raise
        finally:
            self._waiting_bytes -= size

    def _pass_turn(self) -> None:
        while self._turns:
            _, _, turn = heapq.heappop(self._turns)
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False

    # -- the process ---------------------------------------------------------------------------

    async def _call(self, kind: Kind, body: bytes, model: ServedModel) -> Prepared:
        seconds = self._settings.prepare_timeout
        memory = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_TOKEN * model.limits.max_model_len
        call = Call(kind, facts_of(model), memory)
        reason = ""
        for _ in range(ATTEMPTS):
            link = await self._loaded_link()
            try:
                async with asyncio.timeout(seconds):
                    head, tail = await link.call(call, body)
            except TimeoutError:
                self._drop_link()
                raise too_expensive(f"more than {seconds:g} s (see --prepare-timeout)") from None
            except ProcessDiedError as error:
                self._drop_link()
                reason = str(error)
                _log.warning("%s while it prepared a body of %d bytes", reason, len(body))
                if error.out_of_memory:
                    raise too_expensive(f"more than {memory >> 20} MiB of memory") from error
            except BaseException:
                # Its answer would be taken for the next one's.
                self._drop_link()
                raise
            else:
                return unpack(head, tail)
        raise too_expensive(f"more than this server has: {reason}, {ATTEMPTS} times")

    async def _loaded_link(self) -> PrepareLink:
        """Raises ApiError 503 when no process can be started."""
        link = self._link = self._link or PrepareLink.spawn()
        if not link.opened:
            hello = Hello(self._settings.model, self._settings.chat_template, os.getpid())
            try:
                loaded = await link.open(hello)
            except (ProcessDiedError, TimeoutError) as error:
                self._drop_link()
                _log.error("the preparation process cannot start: %s", error)
                raise unavailable(
                    "The process that prepares long requests cannot start.", "overloaded"
                ) from error
            except BaseException:
                self._drop_link()
                raise
            if loaded.render_seconds > SLOW_RENDER_SECONDS:
                self._slow_template = True
        return link

    async def _warm(self) -> None:
        await self._take_turn(0)
        try:
            with contextlib.suppress(ApiError):
                await self._loaded_link()
        finally:
            self._pass_turn()

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.kill()


_RENDERING: frozenset[Kind] = frozenset(
    set(FUNCTIONS) - {"completion", "render_completion", "infill", "detokenize"}
)

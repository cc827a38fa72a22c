"""A response while it is generated: streamed to the client, whole, or in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from rtp_llm.server.errors import ApiError, bad_request, internal, queue_full, unavailable
from rtp_llm.server.http.state import ServerState
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.openai.generation import ChoiceDelta, Generation, Usage
from rtp_llm.server.responses.events import Event
from rtp_llm.server.responses.keeper import Keeper
from rtp_llm.server.responses.writer import ResponseWriter
from rtp_llm.server.typed_events import encode_events

_log = logging.getLogger("rtp_llm.server")


class ResponseAnswer:
    """Fits StreamWriter and AnswerWriter."""

    def __init__(self, writer: ResponseWriter, keeper: Keeper) -> None:
        self._writer = writer
        self._keeper = keeper
        self._begun = False
        self._cut = False

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The events of one delta."""
        return encode_events([*self._begin(), *self._take(delta)])

    def end(self, usage: Usage) -> bytes:
        """The events that close the stream."""
        events = [*self._begin(), *self._writer.finish(self._cut, usage)]
        self._keeper.keep(self._writer.response)
        return encode_events(events)

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The events that close a stream that goes wrong."""
        events = [*self._begin(), *self._writer.fail(error, usage)]
        self._keeper.keep(self._writer.response)
        return encode_events(events)

    def add(self, delta: ChoiceDelta) -> None:
        """Take a delta of an answer that is not streamed."""
        self._take(delta)

    def body(self, usage: Usage) -> bytes:
        """The response."""
        self.end(usage)
        return msgspec.json.encode(self._writer.response)

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return self._writer.begin()

    def _take(self, delta: ChoiceDelta) -> list[Event]:
        self._cut |= delta.finish == "length"
        return self._writer.take(delta.outputs)


class BackgroundAnswer:
    """Generates without a client; begun by `start`, which keeps what there is, as its end does."""

    def __init__(
        self,
        state: ServerState,
        generation: Generation,
        writer: ResponseWriter,
        keeper: Keeper,
        account: Account,
    ) -> None:
        self._state = state
        self._generation = generation
        self._account = generation.account = account
        self._writer = writer
        self._keeper = keeper
        self._cut = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Raises ApiError: 429 of the key, or where the store is full of such responses; 400 for
        one that never has room in it."""
        response = self._writer.response
        if not self._keeper.keep(response, self.cancel):
            raise self._no_room()
        try:
            deltas = self._generation.deltas()
        except ApiError:
            self._keeper.forget(response)
            raise
        self._account.prolong_request()
        self._state.begin_answer(self)
        self._task = asyncio.create_task(self._generate(deltas))
        self._task.add_done_callback(self._end)

    def cut(self) -> None:
        """See Cuttable."""
        self._cut = True
        if self._task is not None:
            self._task.cancel()

    async def cancel(self) -> None:
        """End it, and return when that is done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _no_room(self) -> ApiError:
        if not self._keeper.fits(self._writer.response):
            return bad_request(
                "background: the conversation is longer than all that may be stored (see "
                "--max-stored-response-bytes).",
                "background",
                "request_too_large",
            )
        return queue_full(
            "All responses that may be stored are still generated in the background (see "
            "--max-stored-responses).",
            "too_many_responses",
        )

    async def _generate(self, generated: AsyncGenerator[ChoiceDelta, None]) -> None:
        cut = False
        async with aclosing(generated) as deltas:
            async for delta in deltas:
                cut |= delta.finish == "length"
                self._writer.take(delta.outputs)
        self._writer.finish(cut, self._generation.usage)

    def _end(self, task: asyncio.Task[None]) -> None:
        writer, usage = self._writer, self._generation.usage
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ApiError):
            writer.fail(error, usage)
        elif error is not None:
            _log.error("response %s failed", writer.response.id, exc_info=error)
            writer.fail(internal(), usage)
        elif task.cancelled() and self._cut:
            writer.fail(unavailable("The server is shutting down.", "shutdown"), usage)
        elif task.cancelled():
            writer.cancel(usage)
        self._state.end_answer(self)
        self._account.end_request()
        self._keeper.keep(writer.response)

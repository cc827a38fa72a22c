# SPDX-License-Identifier: Apache-2.0
"""A response that is generated in the background, whether or not a client reads it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.generation.generation import ChoiceDelta, Generation
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.protocols.responses.event_log import EventLog
from rtp_llm.server.protocols.responses.events import Event
from rtp_llm.server.protocols.responses.store_writer import StoreWriter
from rtp_llm.server.protocols.responses.writer import ResponseWriter
from rtp_llm.server.types.errors import ApiError, bad_request, internal, queue_full, unavailable

_log = logging.getLogger("rtp_llm.server")


class BackgroundAnswer:
    """Generates without a client. `start` stores the initial response, the end the final one.

    It counts as queued until the first token. `log`: keeps its events, for streams.
    """

    def __init__(
        self,
        state: ServerState,
        generation: Generation,
        writer: ResponseWriter,
        store_writer: StoreWriter,
        account: Account,
        log: EventLog | None = None,
    ) -> None:
        self._state = state
        self._generation = generation
        self._account = generation.account = account
        self._log = log
        self._writer = writer
        self._store_writer = store_writer
        self._cut = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start generating. Raises ApiError: 429 for a limit of the key or a store full of running
        responses, 400 for a response that would never fit into the store."""
        response = self._writer.response
        if not self._store_writer.keep(response, self, self._log):
            raise self._no_room()
        try:
            deltas = self._generation.deltas()
        except ApiError:
            self._store_writer.forget(response)
            raise
        self._note(self._writer.begin())
        self._account.prolong_request()
        self._state.begin_answer(self)
        self._task = asyncio.create_task(self._generate(deltas))
        self._task.add_done_callback(self._end)

    def cut(self) -> None:
        """See Cuttable."""
        self._cut = True
        if self._task is not None:
            self._task.cancel()

    def body(self) -> bytes:
        """See Live."""
        return msgspec.json.encode(self._writer.response)

    async def cancel(self) -> None:
        """Cancel the generation, and return when it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _no_room(self) -> ApiError:
        if not self._store_writer.fits(self._writer.response):
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
                self._note(self._writer.take(delta.outputs, delta.logprobs))
        self._note(self._writer.finish(cut, self._generation.usage))

    def _note(self, events: Sequence[Event]) -> None:
        if self._log is not None and events:
            self._log.add(events)

    def _end(self, task: asyncio.Task[None]) -> None:
        writer, usage = self._writer, self._generation.usage
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ApiError):
            self._note(writer.fail(error, usage))
        elif error is not None:
            _log.error("response %s failed", writer.response.id, exc_info=error)
            self._note(writer.fail(internal(), usage))
        elif task.cancelled() and self._cut:
            error = unavailable("The server is shutting down.", "shutdown")
            self._note(writer.fail(error, usage))
        elif task.cancelled():
            writer.cancel(usage)
        self._state.end_answer(self)
        self._account.end_request()
        if self._log is not None:
            self._log.end()
        self._store_writer.keep(writer.response, events=self._log)

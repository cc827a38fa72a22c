# SPDX-License-Identifier: Apache-2.0
"""One request's stream of deltas, as its consumer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from rtp_llm.engine.client.backlog import Backlog
from rtp_llm.engine.deltas import merge_deltas
from rtp_llm.engine.messages import ClientRequest, SequenceDelta, TokenLogprob


class TokenStream(AsyncIterator[SequenceDelta]):
    """Async iterator over the deltas of one request's sequences; it ends when all have ended.

    A consumer that is slower than the engine gets several steps in one delta, so what waits here is
    bounded by the tokens of the request, and by what ``backlog`` allows. ``aclose``, cancelling the
    task that waits for the next delta, or dropping the object aborts the request in the engine.

    Raises (from iteration):
        EngineDeadError, RequestError.
    """

    def __init__(
        self,
        request: ClientRequest,
        loop: asyncio.AbstractEventLoop,
        leave: Callable[[TokenStream], None],
        backlog: Backlog | None = None,
    ) -> None:
        self.request_id = request.request_id
        self.params = request.params
        # Kept until there is output: so long another engine may take the request over.
        self.request: ClientRequest | None = request
        self.replayed = False
        self.num_sequences = request.params.n
        self._loop = loop
        self._on_leave = leave
        self._left = False
        self._backlog, self._behind = backlog, False
        self._units = 1 + (request.params.logprobs or 0)  # of a token
        self._open = set(range(request.params.n))
        self._waiting: dict[int, SequenceDelta] = {}
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        if request.params.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * request.num_prompt_tokens
        self._error: Exception | None = None
        self._waker: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """The engine has nothing left of this request."""
        return not self._open

    # -- the client's side ---------------------------------------------------------------------

    def add(self, delta: SequenceDelta) -> None:
        """Take a delta of the engine."""
        if delta.index not in self._open:
            return
        self.request = None
        is_output = delta.token_ids or delta.finish_reason == "stop"  # as a prompt's own end is
        if is_output and self._prompt_logprobs is not None:
            delta = msgspec.structs.replace(delta, prompt_logprobs=self._prompt_logprobs)
            self._prompt_logprobs = None
        earlier = self._waiting.get(delta.index)
        if earlier is None:
            self._waiting[delta.index] = delta
        else:
            self._waiting[delta.index] = merged = merge_deltas(earlier, delta)
            # It has just come to a multiple of 64 tokens.
            if len(merged.token_ids) & 63 < len(delta.token_ids):
                self._fall_behind()
        if delta.finish_reason is not None:
            self._open.discard(delta.index)
        self._wake()

    def add_prompt_logprobs(self, start: int, entries: list[TokenLogprob]) -> None:
        """Take the part of the prompt's log-probabilities that begins at token ``start``."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs[start : start + len(entries)] = entries

    def replay(self, leave: Callable[[TokenStream], None], backlog: Backlog) -> None:
        """Another engine computes the request from its beginning; both are its client's."""
        self.replayed = True
        self._on_leave, self._backlog = leave, backlog

    def open_sequences(self) -> list[tuple[int, int]]:
        """(request_id, index) of the sequences that have not ended."""
        return [(self.request_id, index) for index in sorted(self._open)]

    def abort(self, index: int | None) -> list[tuple[int, int]]:
        """End one or all open sequences with finish_reason "abort"; returns which."""
        ended = [pair for pair in self.open_sequences() if index in (None, pair[1])]
        for _, each in ended:
            self.add(SequenceDelta(index=each, token_ids=[], finish_reason="abort"))
        return ended

    def _fall_behind(self) -> None:
        if self._backlog is not None:
            self._behind = True
            tokens = sum(len(delta.token_ids) for delta in self._waiting.values())
            self._backlog.note(self.request_id, tokens * self._units)

    def _catch_up(self) -> None:
        if self._behind and self._backlog is not None:
            self._behind = False
            self._backlog.forget(self.request_id)

    def drop(self, error: Exception) -> None:
        """End the stream with an error in place of what already waits."""
        self._waiting.clear()
        self._catch_up()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what already waits has been read."""
        self._error = error
        self._open.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._catch_up()
            self._on_leave(self)

    # -- the consumer's side -------------------------------------------------------------------

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> SequenceDelta:
        while not self._waiting:
            if self._error is not None:
                self._leave()
                raise self._error
            if not self._open:
                self._leave()
                raise StopAsyncIteration
            self._waker = self._loop.create_future()
            try:
                await self._waker
            except asyncio.CancelledError:
                self._leave()
                raise
            finally:
                self._waker = None
        delta = self._waiting.pop(next(iter(self._waiting)))
        if self._behind and not self._waiting:
            self._catch_up()
        if not self._waiting and not self._open and self._error is None:
            # The last delta: the request's place is free before the consumer asks again.
            self._leave()
        return delta

    async def aclose(self) -> None:
        """Stop reading; aborts the request unless it has ended."""
        self._leave()
        self._open.clear()
        self._waiting.clear()

    def __del__(self) -> None:
        if not self._left and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)

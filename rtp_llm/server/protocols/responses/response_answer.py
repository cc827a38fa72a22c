# SPDX-License-Identifier: Apache-2.0
"""A response that is generated for a client, streamed or not."""

from __future__ import annotations

import msgspec

from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.generation.generation import ChoiceDelta, Usage
from rtp_llm.server.protocols.responses.events import Event
from rtp_llm.server.protocols.responses.store_writer import StoreWriter
from rtp_llm.server.protocols.responses.writer import ResponseWriter
from rtp_llm.server.types.errors import ApiError


class ResponseAnswer:
    """Implements StreamWriter and AnswerWriter for responses."""

    def __init__(self, writer: ResponseWriter, store_writer: StoreWriter) -> None:
        self._writer = writer
        self._store_writer = store_writer
        self._begun = False
        self._cut = False

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The events of one delta."""
        return encode_events([*self._begin(), *self._take(delta)])

    def end(self, usage: Usage) -> bytes:
        """The events that close the stream."""
        events = [*self._begin(), *self._writer.finish(self._cut, usage)]
        self._store_writer.keep(self._writer.response)
        return encode_events(events)

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The events that close a failed stream."""
        events = [*self._begin(), *self._writer.fail(error, usage)]
        self._store_writer.keep(self._writer.response)
        return encode_events(events)

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta of an answer that is not streamed."""
        self._take(delta)

    def body(self, usage: Usage) -> bytes:
        """The response as JSON."""
        self.end(usage)
        return msgspec.json.encode(self._writer.response)

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return self._writer.begin()

    def _take(self, delta: ChoiceDelta) -> list[Event]:
        self._cut |= delta.finish == "length"
        return self._writer.take(delta.outputs, delta.logprobs)

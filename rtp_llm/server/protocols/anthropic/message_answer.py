# SPDX-License-Identifier: Apache-2.0
"""A message that is generated for a client, streamed or not."""

from __future__ import annotations

import msgspec

from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.generation.generation import ChoiceDelta, Usage
from rtp_llm.server.protocols.anthropic.events import Event
from rtp_llm.server.protocols.anthropic.writer import MessageWriter
from rtp_llm.server.types.anthropic_error import message_error
from rtp_llm.server.types.errors import ApiError


class MessageAnswer:
    """Implements StreamWriter and AnswerWriter. `usage`: updated by the generation."""

    def __init__(self, writer: MessageWriter, usage: Usage, request_id: str) -> None:
        self._writer = writer
        self._usage = usage
        self._request_id = request_id
        self._begun = False
        self._cut = False
        self._stop_string: str | None = None

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The events of one delta."""
        return encode_events([*self._begin(), *self._take(delta)])

    def end(self, usage: Usage) -> bytes:
        """The events that close the stream."""
        first = self._begin()
        last = self._writer.finish(self._cut, self._stop_string, usage)
        return encode_events([*first, *last])

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The event that closes a failed stream."""
        return encode_events([message_error(error, self._request_id)])

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta of an answer that is not streamed."""
        self._take(delta)

    def body(self, usage: Usage) -> bytes:
        """The message as JSON."""
        self._writer.finish(self._cut, self._stop_string, usage)
        return msgspec.json.encode(self._writer.message)

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return self._writer.begin(self._usage)

    def _take(self, delta: ChoiceDelta) -> list[Event]:
        self._cut |= delta.finish == "length"
        if delta.stop_string is not None:
            self._stop_string = delta.stop_string
        return self._writer.take(delta.outputs)
